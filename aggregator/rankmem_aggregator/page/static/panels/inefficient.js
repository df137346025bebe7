// Blocks that were held in vain: longer than any use of them that is recorded. Where use is not recorded it says so.

import { chooser, el } from "../dom.js";
import { Panel } from "../panel.js";
import * as quantities from "../quantities.js";
import { chips, isPicked, picksBut, togglePick } from "../selection.js";
import * as session from "../session.js";
import * as state from "../state.js";
import { Table } from "../table.js";
import * as units from "../units.js";

const KINDS = [
  ["late", "freed late"],
  ["idle", "idle"],
  ["early", "made early"],
  ["wait", "waiting for a stream"],
  ["outlives", "outlived their step"],
];
const MEANINGS = {
  late: "held from its last recorded use to its free; where uses are not recorded, from the end of the backward of the call that made it",
  idle: "the longest time between two recorded uses; where uses are not recorded, from the end of the call that made it to the backward of that call",
  early: "held from its allocation to its first recorded use",
  wait: "its tensor was freed, and the allocator held it for another stream",
  outlives: "held after the end of the step it was made in; parameters, optimizer state and caches are left out",
};
const right = "right";
const COLUMNS = [
  { name: "wasted_gib_s", title: "size × time", align: right, text: (row) => byteSeconds(row.wasted_gib_s), copied: (row) => row.wasted_gib_s },
  { name: "size_bytes", title: "size", align: right, text: (row) => units.bytes(row.size_bytes), copied: (row) => row.size_bytes },
  { name: "held_ns", title: "held in vain", align: right, text: (row) => units.duration(row.held_ns), copied: (row) => row.held_ns },
  { name: "held_steps", title: "steps", align: right, hint: "ends of steps in that time", text: (row) => row.held_steps ?? units.NOTHING },
  { name: "held_from_ns", title: "from", align: right, text: (row) => units.time(row.held_from_ns) },
  { name: "held_until_ns", title: "to", align: right, text: (row) => units.time(row.held_until_ns) },
  { name: "category", title: "category", text: (row) => row.category },
  { name: "operator", title: "operator", text: (row) => row.operator ?? units.NOTHING },
  { name: "module", title: "module", text: (row) => row.module ?? units.NOTHING },
  { name: "line", title: "line", isPath: true, text: (row) => row.line ?? units.NOTHING },
  { name: "step", title: "made in step", align: right, text: (row) => row.step ?? units.NOTHING },
];

// Adds the panel to `root`; returns what refreshes it and takes it down.
export function inefficientPanel(root) {
  let others = "";
  const panel = new Panel(root, {
    id: "inefficient",
    title: "Held in vain",
    reads: ["rank", "attempt", "device", "from", "to", "vain", "least"],
    asks: () => {
      const chosen = session.chosenParameters();
      if (!chosen) return session.NO_EVENTS;
      const [from, to] = session.range();
      others = picksBut("block");
      return [[session.of("inefficient"), { ...chosen, kind: kind(), from, to, least_ns: state.num("least"), pick: others }]];
    },
    show: (answer) => {
      const { recorded, why, num_blocks: count, bytes, gib_s: wasted } = answer.facts;
      panel.drawn = { rows: answer.rows(), facts: answer.facts };
      panel.note(recorded ? `${units.count(count)} blocks, ${units.bytes(bytes)}, ${byteSeconds(wasted)} together; ${MEANINGS[kind()]}` : "");
      said.hidden = recorded && count > 0;
      said.textContent = recorded ? "No block was held so in this range." : `${why[0].toUpperCase()}${why.slice(1)}.`;
      table.element.hidden = !said.hidden;
      table.set(panel.drawn.rows);
      mark();
    },
  });
  const least = el("input", {
    type: "text",
    size: 10,
    placeholder: "10 ms",
    "aria-label": "held in vain at least",
    value: state.num("least") === null ? "" : units.duration(state.num("least")),
    onchange: () => {
      const value = least.value.trim() ? quantities.time(least.value) : null;
      least.setAttribute("aria-invalid", String(Boolean(least.value.trim()) && value === null));
      if (!least.value.trim() || value !== null) state.change({ least: value });
    },
  });
  const kinds = chooser("in which way", KINDS, kind(), (value) => state.change({ vain: value === "late" ? null : value }));
  panel.element.insertBefore(el("div", { class: "bar" }, kinds, el("label", { class: "note" }, "at least ", least)), panel.message);
  const endChips = chips(panel, "block");
  const said = el("p", { class: "message", hidden: true });
  panel.body.append(said);
  const table = new Table(panel.body, {
    columns: COLUMNS,
    arrows: true,
    key: (row) => row.allocation_id,
    label: "blocks held in vain; arrow keys go from row to row",
    onPick: (row) => togglePick("block", row.allocation_id, { within: true }),
  });
  const mark = () => table.mark(panel.drawn?.rows.find((row) => isPicked("block", row.allocation_id))?.allocation_id ?? null);
  const end = state.listen((changed) => {
    kinds.value = kind();
    if (!changed.has("pick")) return;
    if (picksBut("block") !== others) panel.refresh();
    else mark();
  });
  return {
    panel,
    refresh: () => panel.refresh(),
    destroy: () => {
      end();
      endChips();
      panel.destroy();
    },
  };
}

// Size times time, for which bytes held for a second are the unit.
function byteSeconds(gibSeconds) {
  const value = gibSeconds * 2 ** 30;
  return value < 1024 ? `${value.toFixed(2)} B·s` : `${units.bytes(value)}·s`;
}

function kind() {
  return state.choice("vain", KINDS.map(([name]) => name));
}
