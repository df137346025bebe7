// The events of the chosen rank around the chosen one, as a table: arrows step event by event.

import { chooser, el } from "../dom.js";
import { goTo } from "../jumps.js";
import { Panel } from "../panel.js";
import * as session from "../session.js";
import * as state from "../state.js";
import { Table } from "../table.js";
import * as units from "../units.js";

const COUNT = 100;
const KEY = "actions";
const ACTIONS = [
  ["", "all actions"],
  ["alloc", "alloc"],
  ["free_requested,free_completed", "free"],
  ["segment_alloc,segment_map,segment_free,segment_unmap", "segments"],
  ["oom", "oom"],
];
const right = "right";
const bytes = (name) => (row) => units.bytes(row[name]);
const text = (name) => (row) => row[name] ?? units.NOTHING;
const COLUMNS = [
  { name: "seq", title: "event", align: right, text: (row) => units.count(row.seq) },
  { name: "time_ns", title: "time", align: right, text: (row) => units.time(row.time_ns, 1) },
  { name: "action", title: "action", text: text("action") },
  { name: "size_bytes", title: "size", align: right, text: bytes("size_bytes") },
  { name: "address", title: "address", text: text("address") },
  { name: "stream", title: "stream", align: right, text: text("stream") },
  { name: "requested", title: "requested", align: right, text: bytes("requested"), hint: "of the device, after the event" },
  { name: "allocated", title: "allocated", align: right, text: bytes("allocated"), hidden: true },
  { name: "active", title: "active", align: right, text: bytes("active"), hidden: true },
  { name: "reserved", title: "reserved", align: right, text: bytes("reserved") },
  { name: "category", title: "category", text: text("category") },
  { name: "operator", title: "operator", text: text("operator"), hint: "that made the block" },
  { name: "module", title: "module", text: text("module") },
  { name: "phase", title: "phase", text: text("phase"), hidden: true },
  { name: "step", title: "step", align: right, text: text("step") },
  { name: "line", title: "line", isPath: true, text: text("line") },
  { name: "component", title: "component", text: text("component"), hidden: true },
  { name: "stack_id", title: "stack", align: right, text: text("stack_id"), hidden: true },
];

// Adds the panel to `root`; returns what refreshes it and takes it down.
export function eventsPanel(root) {
  const panel = new Panel(root, {
    id: "events",
    title: "Events",
    reads: ["rank", "attempt", "device", "seq", KEY],
    asks: () => {
      const chosen = session.chosenParameters();
      if (!chosen) return session.NO_EVENTS;
      const seq = state.num("seq") ?? session.chosen().peak_seq;
      return [[session.of("events"), { ...chosen, seq, count: COUNT, actions: state.get(KEY) }]];
    },
    empty: "There is no such event on this device. Choose all actions.",
    show: (answer) => {
      const rows = answer.rows();
      panel.drawn = rows;
      panel.note(`${units.count(rows.length)} around event ${units.count(answer.facts.around)}; ↑ and ↓ go to the one before and after`);
      table.set(rows);
      const at = rows.filter((row) => row.seq <= answer.facts.around).at(-1) ?? rows[0];
      table.mark(at.seq);
      if (table.bodyElement.contains(document.activeElement)) table.focus(at.seq);
      bringIntoView(table);
    },
    table: null,
  });
  const actions = chooser("actions", ACTIONS, state.get(KEY) ?? "", (value) => state.change({ [KEY]: value }));
  const table = new Table(panel.body, {
    columns: COLUMNS,
    key: (row) => row.seq,
    label: "events; arrow keys go to the one before and after",
    onPick: (row) => state.change({ seq: row.seq }),
  });
  panel.tools.prepend(el("span", { class: "note" }, actions), table.columnChooser());
  table.element.addEventListener("keydown", (event) => {
    const to = { ArrowDown: "next_event", ArrowUp: "previous_event" }[event.key];
    if (!to) return;
    event.preventDefault();
    step(panel.drawn, to);
  });
  return { panel, refresh: () => panel.refresh(), destroy: () => panel.destroy() };
}

// To the next of the rows that are shown, or by the server where there is none.
function step(rows, to) {
  const now = state.num("seq") ?? session.chosen().peak_seq;
  const next = to === "next_event" ? rows?.find((row) => row.seq > now) : rows?.findLast((row) => row.seq < now);
  if (next) state.change({ seq: next.seq }, { within: true });
  else goTo({ to, seq: now });
}

// Scrolls the marked row to the middle of the table, and nothing else.
function bringIntoView(table) {
  const row = table.element.querySelector("tr.on");
  if (row) table.element.scrollTop = row.offsetTop - table.element.clientHeight / 2;
}
