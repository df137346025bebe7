// What can be relied on: what is missing, where it lies in time, the clocks, and what recording cost.

import { boxOf, drawTimeAxis } from "../axes.js";
import { timeGestures } from "../gestures.js";
import { hatchBox } from "../hatching.js";
import { Panel } from "../panel.js";
import * as session from "../session.js";
import * as state from "../state.js";
import { Surface } from "../surface.js";
import { Table } from "../table.js";
import { ink } from "../theme.js";
import * as tip from "../tip.js";
import * as units from "../units.js";

const yes = (value) => (value === null ? "not known" : value ? "yes" : "no");

const MISSING = [
  { name: "rank", title: "rank", align: "right", text: (row) => units.count(row.rank) },
  { name: "attempt", title: "attempt", align: "right", text: (row) => units.count(row.attempt) },
  { name: "sentence", title: "what is missing", text: (row) => row.sentence },
  { name: "since_ns", title: "since", align: "right", text: (row) => units.time(row.since_ns, 1e6) },
  { name: "is_bytes", title: "figures of bytes", text: (row) => ({ null: "may be too low", true: "not exact", false: "exact" })[row.is_bytes] },
];
const CLOCKS = [
  { name: "host_name", title: "host", text: (row) => row.host_name },
  { name: "attempt", title: "attempt", align: "right", text: (row) => units.count(row.attempt) },
  { name: "num_ranks", title: "ranks", align: "right", text: (row) => units.count(row.num_ranks) },
  { name: "offset_ns", title: "added to its times", align: "right", text: (row) => units.duration(Number(row.offset_ns)) },
  { name: "error_ns", title: "right to within", align: "right", text: (row) => (row.error_ns === null ? "never measured" : units.duration(row.error_ns)) },
  { name: "num_estimates", title: "measurements", align: "right", text: (row) => units.count(row.num_estimates ?? 0) },
];
const DELIVERY = [
  { name: "rank", title: "rank", align: "right", text: (row) => units.count(row.rank) },
  { name: "attempt", title: "attempt", align: "right", text: (row) => units.count(row.attempt) },
  { name: "host_name", title: "host", text: (row) => row.host_name ?? units.NOTHING },
  { name: "complete", title: "complete", text: (row) => yes(row.complete) },
  { name: "end_reason", title: "ended", text: (row) => row.end_reason ?? "still running" },
  { name: "events", title: "events", align: "right", text: (row) => units.count(row.events) },
  { name: "records_lost", title: "records lost", align: "right", text: (row) => (row.records_lost === null ? "not known" : units.count(row.records_lost)) },
  { name: "is_exact", title: "peak exact", text: (row) => yes(row.is_exact) },
  { name: "unexplained", title: "unexplained", align: "right", text: (row) => units.bytes(row.unexplained_bytes) },
  { name: "lag_ns", title: "lag", align: "right", text: (row) => units.duration(row.lag_ns) },
  { name: "spool", title: "left in its spool", align: "right", text: (row) => units.bytes(row.spool_bytes) },
  { name: "sent", title: "sent", align: "right", text: (row) => units.bytes(row.sent_bytes) },
  { name: "cpu", title: "shipper's CPU, of its host", align: "right", text: (row) => units.duration(row.shipper_cpu_ns) },
  { name: "attach", title: "agent's start", align: "right", text: (row) => units.duration(row.attach_ns) },
];

// A panel that is one table of one route.
function tablePanel(root, { id, title, columns, note, empty = "", onPick = null }) {
  const panel = new Panel(root, {
    id,
    title,
    reads: [],
    asks: () => [[session.of(id), {}]],
    empty,
    show: (answer) => {
      panel.drawn = answer.rows();
      panel.note(note(panel.drawn));
      table.set(panel.drawn);
    },
  });
  const table = new Table(panel.body, { columns, key: (row) => `${row.host_name ?? ""}/${row.rank}/${row.attempt}/${row.sentence ?? ""}`, label: title, onPick });
  return panel;
}

const openRank = (row) => state.change({ view: "rank", rank: row.rank, attempt: row.attempt, device: null, seq: null });

export function missingPanel(root) {
  return tablePanel(root, {
    id: "missing",
    title: "What is missing",
    columns: MISSING,
    note: (rows) => `${units.counted(rows.length, "finding")}; figures of bytes first`,
    empty: "Nothing is known to be missing: every rank reported, and every record of its log is stored.",
    onPick: openRank,
  });
}

export function clocksPanel(root) {
  return tablePanel(root, {
    id: "clocks",
    title: "Clocks",
    columns: CLOCKS,
    note: () => "times of different hosts agree to within the sum of their errors",
    empty: "No rank has reported yet.",
  });
}

export function deliveryPanel(root) {
  return tablePanel(root, {
    id: "delivery",
    title: "Delivery and cost",
    columns: DELIVERY,
    note: (rows) => `${units.count(rows.filter((row) => row.complete).length)} of ${units.count(rows.length)} complete`,
    empty: "No rank has reported yet.",
    onPick: openRank,
  });
}

// The holes over time: a line for each rank that has one.
export function gapsPanel(root) {
  let rows = [];
  let lines = [];
  const panel = new Panel(root, {
    id: "gaps",
    title: "Gaps in time",
    reads: ["from", "to"],
    asks: () => [[session.of("gaps"), {}]],
    empty: "No log has a hole.",
    show: (answer) => {
      rows = answer.rows();
      lines = [...new Set(rows.map((row) => row.rank))];
      panel.drawn = rows;
      const more = answer.facts.cut ? ", and there are more" : "";
      panel.note(`${units.counted(rows.length, "hole")} on ${units.counted(lines.length, "rank")}${more}; each lies within its hatched range`);
      surface.setHeight(Math.min(360, 26 + Math.max(16, 16 * lines.length)));
      surface.draw();
    },
    table: () => ({
      columns: ["rank", "attempt", "why", "records", "from", "until"],
      rows: rows.map((row) => [row.rank, row.attempt, row.why, row.records ?? "not known", units.time(row.from_ns, 1e6), units.time(row.until_ns, 1e6)]),
    }),
  });
  const surface = new Surface(panel.body, { height: 60, label: "holes in the ranks' logs over time", paint: (g) => paint(g) });
  const box = () => boxOf(surface.width, surface.height, { top: 2 });
  timeGestures(surface, { box, range: session.range, limits: session.limits, hover, leave: tip.hide });

  function place(row, inside) {
    const [from, to] = session.range();
    const x = (ns) => inside.x + Math.max(0, Math.min(1, (ns - from) / (to - from))) * inside.width;
    const [begin, end] = [x(row.from_ns ?? from), x(row.until_ns ?? to)];
    const high = inside.height / lines.length;
    return { x: begin, y: inside.y + lines.indexOf(row.rank) * high, width: Math.max(3, end - begin), height: Math.max(2, high - 2) };
  }

  function paint(g) {
    const inside = box();
    drawTimeAxis(g, inside, ...session.range());
    g.textAlign = "right";
    g.textBaseline = "middle";
    const step = Math.max(1, Math.ceil((14 * lines.length) / inside.height));
    lines.forEach((rank, i) => {
      g.fillStyle = ink("faint");
      if (i % step === 0) g.fillText(`rank ${rank}`, inside.x - 6, inside.y + ((i + 0.5) * inside.height) / lines.length);
    });
    g.strokeStyle = ink("warn");
    for (const row of rows) {
      const hole = place(row, inside);
      hatchBox(g, hole, 6);
      g.strokeRect(hole.x + 0.5, hole.y + 0.5, hole.width - 1, hole.height - 1);
    }
  }

  function hover(x, y) {
    const inside = box();
    const found = rows.find((row) => {
      const at = place(row, inside);
      return x >= at.x && x <= at.x + at.width && y >= at.y && y <= at.y + at.height;
    });
    if (!found) return tip.hide();
    tip.showAt(surface, x, y, [
      `rank ${found.rank}: ${found.why}`,
      found.records === null ? "all from then on is missing" : `at most ${units.count(found.records)} events`,
      `within ${units.time(found.from_ns, 1e6)} to ${units.time(found.until_ns, 1e6)}`,
    ]);
    return undefined;
  }

  const destroy = panel.destroy.bind(panel);
  panel.destroy = () => {
    destroy();
    surface.destroy();
  };
  return panel;
}
