// The steps of one rank, as a table.

import { Panel } from "../panel.js";
import * as session from "../session.js";
import * as state from "../state.js";
import { Table } from "../table.js";
import * as units from "../units.js";

const ROWS_MOST = 500;
export const NO_STEPS = "No steps: no optimizer stepped, and rankmem_agent.step() was not called. For inference, call it after each batch.";

// Why a rank is shown that nobody chose.
export function whyThis({ grows_most: grows }) {
  if (state.num("rank") !== null) return "";
  return grows ? "the rank that leaks fastest; " : "no rank is known to leak; ";
}

const signed = (name) => (row) => (row[name] === null ? units.NOTHING : units.signedBytes(row[name]));
const plain = (name) => (row) => units.bytes(row[name]);
const COLUMNS = [
  { name: "attempt", title: "attempt", align: "right", hidden: true, text: (row) => String(row.attempt) },
  { name: "device", title: "device", text: (row) => row.device },
  { name: "step", title: "step", align: "right", text: (row) => String(row.step) },
  { name: "peak_bytes", title: "peak", align: "right", text: plain("peak_bytes") },
  { name: "peak_growth_bytes", title: "its growth", align: "right", text: signed("peak_growth_bytes") },
  { name: "end_bytes", title: "left behind", align: "right", text: plain("end_bytes") },
  { name: "end_growth_bytes", title: "its growth", align: "right", text: signed("end_growth_bytes") },
  { name: "allocated_bytes", title: "allocated in it", align: "right", text: plain("allocated_bytes") },
  { name: "num_allocations", title: "allocations", align: "right", text: (row) => units.count(row.num_allocations) },
  { name: "ended_ns", title: "ended", align: "right", text: (row) => units.time(row.ended_ns, 1e6) },
  { name: "duration_ns", title: "took", align: "right", text: (row) => units.duration(row.duration_ns) },
  { name: "optimizers", title: "ended by", text: (row) => [...row.optimizers].join(", ") },
];

export function stepsTablePanel(root) {
  const panel = new Panel(root, {
    id: "steps-table",
    title: "Steps",
    reads: ["rank", "attempt", "type"],
    asks: () => (session.chosen() ? [[session.of("steps"), { rank: state.num("rank"), attempt: state.num("attempt"), device_type: state.get("type"), limit: ROWS_MOST }]] : session.NO_EVENTS),
    empty: NO_STEPS,
    show: (answer) => {
      const { rank, num_rows: all } = answer.facts;
      const rows = answer.rows();
      panel.drawn = { rank, rows };
      const attempts = new Set(rows.map((row) => row.attempt));
      panel.title(`Steps of rank ${rank}${attempts.size === 1 && session.attempts().length > 1 ? ` · attempt ${rows[0].attempt}` : ""}`);
      table.showColumn("attempt", attempts.size > 1);
      panel.note(`${whyThis(answer.facts)}${all > rows.length ? `the last ${units.count(rows.length)} of ${units.count(all)}` : units.count(all)}; click a row: its time in the view Job`);
      table.set(rows);
    },
  });
  const table = new Table(panel.body, {
    columns: COLUMNS.map((column) => ({ ...column })),
    label: "steps of the rank",
    key: (row) => `${row.attempt} ${row.device} ${row.step}`,
    onPick: (row) =>
      state.change({ view: "job", rank: panel.drawn.rank, attempt: row.attempt, device: row.device, from: row.started_ns, to: row.ended_ns, seq: null }),
  });
  panel.tools.prepend(table.columnChooser());
  return panel;
}
