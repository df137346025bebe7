// Ranks over steps, and what stays from step to step.

import { Bars } from "../bars.js";
import { chooser, el, toggles } from "../dom.js";
import { BLOCK_GROUPINGS } from "../facts.js";
import { refill } from "../focus.js";
import { HeatMap } from "../heat.js";
import { Panel, partsOf } from "../panel.js";
import { togglePick } from "../selection.js";
import * as session from "../session.js";
import { legendEntry } from "../shades.js";
import * as state from "../state.js";
import { drawStepAxis, hoverAndPick } from "../step_axis.js";
import { ink } from "../theme.js";
import * as tip from "../tip.js";
import * as units from "../units.js";
import { pickedNames } from "./peak.js";
import { NO_STEPS, whyThis } from "./step_table.js";

const FIGURES = [
  ["growth", "growth", "how much more each step leaves behind than the one before"],
  ["end", "left behind", "bytes after the last event of each step"],
  ["peak", "peak", "highest bytes in each step"],
];
const KEPT_BY = ["line", ...BLOCK_GROUPINGS.map(([name]) => name).filter((name) => name !== "line")];
const KEEP = 4;

function figure() {
  return state.choice("steps", FIGURES.map(([name]) => name));
}

function openRank(row) {
  state.change({ rank: row.rank, attempt: row.attempt, device: row.device, seq: null });
}

export function stepsHeatPanel(root) {
  let rows = [];
  let facts = null;
  const stepText = (bin) => (facts.first_steps[bin] === facts.last_steps[bin] ? `step ${facts.first_steps[bin]}` : `steps ${facts.first_steps[bin]} to ${facts.last_steps[bin]}`);
  const panel = new Panel(root, {
    id: "steps-heat",
    title: "Ranks over steps",
    reads: ["steps", "type", "attempt", "rank"],
    asks: () => [[session.of("step_heat"), { figure: figure(), device_type: state.get("type"), attempt: state.num("attempt") }]],
    empty: NO_STEPS,
    show: (answer) => {
      rows = answer.rows();
      facts = answer.facts;
      const bins = facts.first_steps.length;
      if (bins < 2 && facts.figure === "growth") {
        panel.say("There is one step alone: growth needs two. What it left behind and its peak are beside this.");
        return;
      }
      const cells = new Uint8Array(rows.length * bins);
      rows.forEach((row, i) => cells.set(row.cells, i * bins));
      const kind = facts.figure === "growth" ? "difference" : "amount";
      panel.drawn = { ranks: rows.map((row) => row.rank), bins, cells: [...cells], low: facts.low_bytes, high: facts.high_bytes };
      const scale =
        kind === "difference"
          ? `blue: less than the step before, orange: more, up to ${units.bytes(facts.high_bytes)}`
          : `${units.bytes(facts.low_bytes)} (dark) to ${units.bytes(facts.high_bytes)} (bright)`;
      panel.note(session.attempts().length > 1 ? `attempt ${rows[0].attempt}; ${scale}` : scale);
      choice.set(figure());
      plot.surface.setHeight(Math.min(300, Math.max(90, 26 + rows.length * 14)));
      plot.set({ rows: rows.map((row) => String(row.rank)), bins, cells, kind, from: 0, to: bins });
      plot.choose(rows.findIndex((row) => row.rank === state.num("rank")));
    },
    table: () => ({
      columns: ["rank", "device", ...facts.first_steps.slice(-50).map((_, i, all) => stepText(facts.first_steps.length - all.length + i))],
      rows: rows.map((row) => [row.rank, row.device, ...(row.values ? [...row.values] : [...row.cells]).slice(-50).map((value) => value ?? units.NOTHING)]),
    }),
  });
  const choice = toggles("figure", FIGURES, figure(), (name) => state.change({ steps: name }));
  panel.tools.prepend(choice);
  const plot = new HeatMap(panel.body, {
    height: 200,
    label: "memory of each rank over the training steps; the button table shows it as text",
    range: () => [0, facts?.first_steps.length ?? 1],
    limits: () => [0, facts?.first_steps.length ?? 1],
    axis: (g, box) => facts && drawStepAxis(g, box, facts),
    gestures: hoverAndPick,
    hover: (i, bin, x, y) => {
      const row = rows[i];
      const exact = row.values ? row.values.at?.(bin) ?? [...row.values][bin] : null;
      const about = facts.low_bytes + ((row.cells[bin] - 1) / 254) * (facts.high_bytes - facts.low_bytes);
      const text = row.cells[bin] === 0 ? "not known" : exact !== null ? units.bytes(exact) : `about ${units.bytes(Math.round(about))}`;
      tip.showAt(plot.surface, x, y, [`rank ${row.rank} · ${row.device}`, `${stepText(bin)}: ${text}`]);
    },
    leave: tip.hide,
    pick: (i) => openRank(rows[i]),
    step: (by) => {
      const at = rows.findIndex((row) => row.rank === state.num("rank"));
      if (rows.length) openRank(rows[Math.max(0, Math.min(rows.length - 1, at + by))]);
    },
  });
  return partsOf(panel, plot);
}

export function stepsKeptPanel(root) {
  const by = () => state.choice("by", KEPT_BY);
  const keep = () => Math.max(1, state.num("keep") ?? KEEP);
  const panel = new Panel(root, {
    id: "steps-kept",
    title: "What stays from step to step",
    reads: ["rank", "attempt", "device", "type", "by", "keep", "pick"],
    asks: () => (session.chosen() ? [[session.of("step_kept"), { ...ofRank(), device_type: state.get("type"), by: by(), keep: keep() }]] : session.NO_EVENTS),
    show: (answer) => {
      const { facts } = answer;
      const rows = answer.rows();
      if (facts.last_step === null) {
        panel.say(NO_STEPS);
        return;
      }
      panel.drawn = { rank: facts.rank, by: by(), keep: facts.keep, rows };
      group.value = by();
      count.value = facts.keep;
      panel.title(`What stays at least ${units.counted(facts.keep, "step")} · rank ${facts.rank} · ${facts.host_name}`);
      panel.note(`${whyThis(facts)}made in step ${units.count(facts.since)} or later`);
      nothing.hidden = rows.length > 0;
      nothing.textContent =
        facts.since + facts.keep > facts.last_step
          ? `Too few steps for that: the last one is step ${units.count(facts.last_step)}.`
          : "Nothing that was made after the warm-up was still there so many steps later.";
      legend.hidden = rows.length === 0;
      refill(legend, legendEntry("alive at the end of the last step", "var(--accent)"), legendEntry("freed since", "var(--faint)"));
      plot.surface.canvas.hidden = rows.length === 0;
      plot.set({ rows: rows.map(keptBar), only: pickedNames(by()) });
    },
    table: () => ({
      columns: [by(), "function", "alive at the end", "blocks", "kept in all", "blocks", "steps", "first", "last", "largest"],
      rows: panel.drawn.rows.map((row) => [
        row.group_name ?? `no ${by()}`, row.function ?? "", row.alive_bytes, row.alive_blocks, row.kept_bytes, row.kept_blocks,
        `${row.num_steps} of ${row.looked_at}`, row.first_step, row.last_step, row.largest_bytes,
      ]),
    }),
  });
  const group = chooser("blocks by", KEPT_BY.map((name) => [name, `by ${name}`]), by(), (name) => state.change({ by: name }));
  const count = el("input", {
    type: "number", min: 1, max: 1000000, value: keep(), class: "short", "aria-label": "steps that a block stays, at least",
    title: "steps that a block stays, at least", onchange: () => state.change({ keep: count.value && Number(count.value) >= 1 ? Math.floor(Number(count.value)) : null }),
  });
  panel.tools.prepend(el("label", { class: "note" }, "at least ", count, " steps"), group);
  const legend = el("div", { class: "legend" });
  const nothing = el("p", { class: "message" });
  nothing.hidden = true;
  panel.body.append(legend, nothing);
  const plot = new Bars(panel.body, {
    label: "bytes that stayed from step to step, by group; the button table shows them as text",
    hover: (row, _, x, y) => tip.showAt(plot.surface, x, y, [row.name, ...row.lines]),
    leave: tip.hide,
    pick: ({ row }) => togglePick(by(), row.group_name ?? ""),
  });
  const keptBar = (row) => {
    const freed = row.kept_bytes - row.alive_bytes;
    const steps = `${units.count(row.num_steps)} of ${units.count(row.looked_at)} steps`;
    return {
      name: row.function ? `${row.group_name} ${row.function}` : (row.group_name ?? `no ${by()}`),
      note: `${units.bytes(row.alive_bytes)} at the end · ${steps}`,
      warns: row.alive_bytes === row.kept_bytes && row.num_steps > 1,
      parts: [
        { name: row.group_name, value: row.alive_bytes, colour: ink("accent") },
        { name: row.group_name, value: freed, colour: ink("faint") },
      ],
      lines: [
        `alive at the end of the last step: ${units.bytes(row.alive_bytes)} in ${units.counted(row.alive_blocks, "block")}`,
        `freed after that many steps: ${units.bytes(freed)} in ${units.counted(row.kept_blocks - row.alive_blocks, "block")}`,
        `made in ${steps}, from ${row.first_step} to ${row.last_step}: ${units.bytes(Math.round(row.kept_bytes / Math.max(1, row.looked_at)))} a step; the largest ${units.bytes(row.largest_bytes)}`,
      ],
      row,
    };
  };
  return partsOf(panel, plot);
}

// The rank that the state names; none: the server takes the one that leaks fastest.
function ofRank() {
  return { rank: state.num("rank"), attempt: state.num("attempt"), device: state.num("rank") === null ? null : state.get("device") };
}
