// MindStudio Insight's Memory page, with its own names, MB and ms: choosers; curves with the peaks' title; the tables of
// allocations and of components; static graphs.

import { chooser, el } from "../dom.js";
import { refill } from "../focus.js";
import { curvePanel } from "../panels/curve.js";
import { mindstudioComponentsPanel, mindstudioOperatorsPanel } from "../panels/mindstudio_tables.js";
import { staticGraphPanel } from "../panels/static_graph.js";
import * as session from "../session.js";
import * as state from "../state.js";
import * as units from "../units.js";

export function mount(root) {
  units.setStyle("mindstudio");
  const place = el("section", { class: "card", id: "mindstudio-choosers", "aria-label": "MindStudio's choosers" }, choosers());
  root.append(place);
  const end = state.listen((changed) => changed.has("rank") && refill(place, choosers()));
  const parts = [curvePanel, mindstudioOperatorsPanel, mindstudioComponentsPanel, staticGraphPanel].map((make) => make(root));
  for (const part of parts) part.refresh();
  return () => {
    end();
    for (const part of parts) part.destroy();
    units.setStyle(state.choice("style", units.STYLES));
  };
}

// Host, rank, grouping, and what to compare with.
function choosers() {
  const { ranks } = session.job();
  const chosen = session.chosen();
  const hosts = [...new Set(ranks.map((row) => row.host_name ?? "unknown"))];
  const host = chosen?.host_name ?? hosts[0];
  const ofHost = [...new Set(ranks.filter((row) => (row.host_name ?? "unknown") === host).map((row) => String(row.rank)))];
  const firstOf = (name) => ranks.find((row) => (row.host_name ?? "unknown") === name)?.rank;
  const open = (rank) => state.change({ rank, attempt: null, device: null, seq: null });
  const side = (rank) => `/${rank}/made=${session.range().map(Math.round).join(":")}`;
  const others = [...new Set(ranks.map((row) => String(row.rank)))].filter((rank) => rank !== String(chosen?.rank));
  return el(
    "div",
    { class: "tools" },
    "Host Name ",
    chooser("Host Name", hosts, host, (name) => open(firstOf(name))),
    "Rank ID ",
    chooser("Rank ID", ofHost, String(chosen?.rank ?? ""), (rank) => open(rank)),
    others.length ? "Compare with " : "",
    others.length
      ? chooser("Compare with", [["", "no rank"], ...others.map((rank) => [rank, `rank ${rank}`])], "", (rank) =>
          state.change({ view: "diff", by: "operator", a: side(chosen.rank), b: side(rank) }),
        )
      : "",
  );
}
