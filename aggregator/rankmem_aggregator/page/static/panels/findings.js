// What `rankmem diagnose` finds, and the view of each.

import { el } from "../dom.js";
import { refill } from "../focus.js";
import { insightPanel } from "../insight.js";
import { stateLink } from "../links.js";
import * as session from "../session.js";
import * as units from "../units.js";

// By kind: name, view.
const KINDS = {
  oom: ["out of memory", "oom"],
  early_peak: ["early peak", "blocks"],
  leak: ["leak", "steps"],
  other_processes: ["other processes", "rank"],
  unexplained: ["unexplained", "rank"],
  imbalance: ["imbalance", "peak"],
  remedy: ["remedy", "fit"],
  fragmentation: ["fragmentation", "segments"],
};

export function findingsPanel(root) {
  return insightPanel(root, {
    id: "findings",
    title: "What to look at first",
    reads: [],
    asks: () => [[session.of("insight/diagnose"), {}]],
    press: { button: "diagnose", text: "Asks all insights about this session, for some seconds: at most eight findings, those first that lower the peak most." },
    words: ({ sentence, notes, figures }) => ({
      sentence: figures.num_findings ? units.counted(figures.num_findings, "finding") : sentence,
      lines: notes.filter((note) => !/^\d+\. /.test(note)), // those of the findings are the list
    }),
    draw: (place, rows) => refill(place, el("ol", { class: "findings" }, ...rows.map(finding))),
  });
}

function finding(row) {
  const [name, view] = KINDS[row.kind] ?? [row.kind, "trust"];
  const [least, to] = row.is_lower_bound ? ["at least ", `${units.bytes(row.peak_after_least)} to `] : ["", ""];
  const saved = row.bytes === null ? "" : `saves ${least}${units.bytes(row.bytes)}, then ${to}${units.bytes(row.peak_after)}; `;
  return el(
    "li",
    {},
    stateLink({ view, rank: row.rank, attempt: null, device: null, seq: null }, {}, name),
    ` ${saved}${row.certainty}: ${row.sentence}. `,
    el("span", { class: "note" }, `Do: ${row.remedy}`),
  );
}
