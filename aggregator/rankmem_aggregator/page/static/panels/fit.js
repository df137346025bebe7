// Does it fit, and for how long? Each rank's peak against its device or against a size to try.

import { Bars } from "../bars.js";
import { chooser, el, setOptions } from "../dom.js";
import { refill } from "../focus.js";
import { gibOf } from "../groups.js";
import { tile } from "../links.js";
import { Panel, partsOf } from "../panel.js";
import * as session from "../session.js";
import { legendEntry } from "../shades.js";
import * as state from "../state.js";
import { Table } from "../table.js";
import * as tip from "../tip.js";
import * as units from "../units.js";

const GIB = 2 ** 30;
const ROWS_MOST = 1000;
const COLOURS = { requested: "#0072b2", reserved: "#56b4e9", beyond: "#cc79a7" };
const VERDICTS = {
  fits: "fits",
  tight: "tight: at requested alone",
  short: "does not fit",
  unknown: "not known",
};
const noEvents = () => `No rank has events. ${session.command("status")} says what each rank sent.`;

// The size to try, GiB; null: each rank's own device.
function size() {
  return gibOf("size", "each rank's own device is taken");
}

const asks = () => [[session.of("fit"), { device_type: state.get("type"), size_gib: size() }]];

function open(row) {
  state.change({ view: "steps", rank: row.rank, attempt: row.attempt, device: row.device, seq: null });
}

// What leaks on a rank, by `rankmem leaks`: bytes a step of all its lines that do.
function growthText(row) {
  if (row.growth === null) return row.is_growth_known ? "none" : units.NOTHING;
  return `${units.signedBytes(Math.round(row.bytes_per_step))} a step`;
}

function rangeText(row) {
  if (row.growth === null) return row.is_growth_known ? "nothing leaks on it" : "whether it grows is not known";
  const [low, high] = [row.low_bytes_per_step, row.high_bytes_per_step].map((value) => units.signedBytes(Math.round(value)));
  return `${row.growth}: ${growthText(row)} (${low} to ${high}), by rankmem leaks`;
}

// Steps until it is full, with the range of the rate.
function stepsText(row) {
  if (row.steps_left === null) return units.NOTHING;
  const [least, most] = [units.count(row.steps_left_low), row.steps_left_high === null ? "never" : units.count(row.steps_left_high)];
  const range = least === most ? units.count(row.steps_left) : `${units.count(row.steps_left)} (${least} to ${most})`;
  return row.time_left_ns === null || row.steps_left === 0 ? `${range} steps` : `${range} steps, ${units.duration(row.time_left_ns)}`;
}

function fullText(row) {
  return row.steps_left === 0 ? "full at the next step" : `full in ${stepsText(row)}`;
}

function leftText(bytes) {
  if (bytes === null) return units.NOTHING;
  return bytes < 0 ? `${units.bytes(-bytes)} short` : `${units.bytes(bytes)} left`;
}

// The ranks in the order in which they get into trouble: what does not fit, what is full soonest, what has least room.
function urgency(a, b) {
  const short = (row) => (row.left_bytes !== null && row.left_bytes < 0 ? row.left_bytes : 0);
  const soon = (row) => row.steps_left ?? Infinity;
  const steps = soon(a) === soon(b) ? 0 : soon(a) - soon(b);
  return short(a) - short(b) || steps || (a.left_bytes ?? -a.peak_bytes) - (b.left_bytes ?? -b.peak_bytes) || a.rank - b.rank;
}

export function fitPanel(root) {
  const panel = new Panel(root, {
    id: "fit",
    title: "Does it fit?",
    reads: ["type", "size"],
    asks,
    empty: noEvents,
    show: (answer) => {
      const { facts } = answer;
      const rows = rowsOf(answer).sort(urgency);
      panel.drawn = { rows, facts };
      setOptions(device, facts.device_types, facts.device_type);
      device.hidden = facts.device_types.length < 2;
      input.value = size() ?? "";
      const margin = facts.margin_share === null ? "all of it is usable" : `usable is less ${units.share(facts.margin_share)}, ${units.bytes(facts.margin_least_bytes)} at least, and what the process holds beyond the allocator`;
      panel.note(`${size() === null ? "on the devices of the ranks" : `on devices of ${size()} GiB`}; ${margin}`);
      refill(tiles, ...tilesOf(rows));
      refill(unknown, ...facts.not_known.map((sentence) => el("p", { class: "note" }, sentence)));
      refill(legend, ...legendOf(rows));
      const limit = commonLimit(rows);
      plot.set({ rows: rows.map(barOf), limit: limit === null ? null : { value: limit, text: units.bytes(limit) } });
    },
    table: () => ({ columns: COLUMNS.map((column) => column.title), rows: panel.drawn.rows.map((row) => COLUMNS.map((column) => column.text(row))) }),
  });
  const device = chooser("type of device", [], null, (type) => state.change({ type }));
  device.hidden = true;
  const input = el("input", {
    type: "number", min: 0.001, step: "any", class: "short", placeholder: "own", "aria-label": "device size to try, GiB",
    title: "device size to try, GiB; empty: each rank's own device", onchange: () => state.change({ size: Number(input.value) > 0 ? Number(input.value) : null }),
  });
  panel.tools.prepend(device, el("label", { class: "note" }, "on ", input, " GiB"));
  const tiles = el("div", { class: "tiles" });
  const unknown = el("div");
  const legend = el("div", { class: "legend" });
  panel.body.append(tiles, unknown, legend);
  const plot = new Bars(panel.body, {
    of: "ranks, the most urgent first",
    label: "peak of each rank against the size of its device, the most urgent first; the button table shows it as text",
    hover: (row, part, x, y) =>
      tip.showAt(plot.surface, x, y, [
        row.title,
        part ? `${part.label}: ${units.bytes(part.value)}` : null,
        `at requested: ${leftText(row.row.left_bytes)}; at reserved: ${leftText(row.row.left_reserved_bytes)}: ${VERDICTS[row.row.verdict]}`,
        rangeText(row.row),
        row.row.steps_left === null ? null : fullText(row.row),
        row.row.headroom_bytes === null ? null : `headroom by the last sample: ${units.bytes(row.row.headroom_bytes)}`,
        "click: its steps",
      ]),
    leave: tip.hide,
    pick: (row) => open(row.row),
  });
  return partsOf(panel, plot);
}

function rowsOf(answer) {
  return answer.rows().map((row) => ({ ...row, is_growth_known: answer.facts.growth_is_known }));
}

function tilesOf(rows) {
  const known = rows.filter((row) => row.left_bytes !== null);
  const short = known.filter((row) => row.left_bytes < 0);
  const reserved = rows.filter((row) => row.left_reserved_bytes !== null);
  const shortReserved = reserved.filter((row) => row.left_reserved_bytes < 0);
  const least = known.reduce((best, row) => (best === null || row.left_bytes < best.left_bytes ? row : best), null);
  const first = rows.filter((row) => row.steps_left !== null).reduce((best, row) => (best === null || row.steps_left < best.steps_left ? row : best), null);
  const fastest = rows.filter((row) => row.growth !== null).reduce((best, row) => (best === null || row.bytes_per_step > best.bytes_per_step ? row : best), null);
  const whose = (row) => (row ? `: rank ${row.rank}` : "");
  const of = (some, all) => (all.length ? `${units.count(some.length)} of ${units.count(all.length)}` : "not known");
  return [
    tile("do not fit, at requested", of(short, known), "with the bytes that the job asked for, the least that it needs"),
    tile("do not fit, at reserved", of(shortReserved, reserved), "with what the allocator held, which includes what it would give back"),
    tile(`least room${whose(least)}`, least ? leftText(least.left_bytes) : "not known"),
    tile(`grows fastest${whose(fastest)}`, fastest ? growthText(fastest) : rows.some((row) => row.is_growth_known) ? "no rank" : "not known"),
    tile(`full first${whose(first)}`, first ? units.counted(first.steps_left, "step") : fastest ? "not known" : units.NOTHING, first ? stepsText(first) : null),
  ];
}

function barOf(row) {
  const parts = [{ name: "requested", label: "requested at the peak", value: row.peak_bytes, colour: COLOURS.requested }];
  const unused = row.reserved_peak_bytes === null ? 0 : row.reserved_peak_bytes - row.peak_bytes;
  if (unused > 0) parts.push({ name: "reserved", label: "reserved beyond that", value: unused, colour: COLOURS.reserved });
  if (row.beyond_bytes) parts.push({ name: "beyond", label: "beyond the allocator", value: row.beyond_bytes, colour: COLOURS.beyond });
  const texts = [row.left_bytes === null ? `${units.bytes(row.peak_bytes)} needed` : leftText(row.left_bytes)];
  if (row.verdict === "tight") texts.push(`${units.bytes(-row.left_reserved_bytes)} short at reserved`);
  if (row.growth !== null) texts.push(growthText(row));
  if (row.steps_left !== null) texts.push(fullText(row));
  return {
    name: `rank ${row.rank}`,
    title: `rank ${row.rank} · ${row.host_name} · ${row.device}`,
    note: texts.join(" · "),
    warns: row.verdict === "short" || row.verdict === "tight" || row.steps_left !== null,
    mark: row.usable_bytes === null ? null : row.usable_bytes + (row.beyond_bytes ?? 0),
    parts,
    row,
  };
}

// The size, where it is that of all ranks.
function commonLimit(rows) {
  const sizes = new Set(rows.map((row) => row.size_bytes));
  return sizes.size === 1 ? [...sizes][0] : null;
}

function legendOf(rows) {
  const entries = [legendEntry("requested at the peak", COLOURS.requested)];
  if (rows.some((row) => row.reserved_peak_bytes !== null)) entries.push(legendEntry("reserved beyond that", COLOURS.reserved));
  if (rows.some((row) => row.beyond_bytes)) entries.push(legendEntry("the process beyond the allocator", COLOURS.beyond));
  if (rows.some((row) => row.usable_bytes !== null)) entries.push(el("span", {}, "tick: size less the margin"));
  return entries;
}

const bytes = (name) => (row) => units.bytes(row[name]);
const rate = (name) => (row) => (row[name] === null ? units.NOTHING : units.signedBytes(Math.round(row[name])));
const COLUMNS = [
  { name: "rank", title: "rank", align: "right", text: (row) => String(row.rank) },
  { name: "host_name", title: "host", text: (row) => row.host_name },
  { name: "device", title: "device", text: (row) => row.device },
  { name: "verdict", title: "verdict", hint: "tight: what was requested fits, what the allocator reserved does not: it would have to give back some", text: (row) => VERDICTS[row.verdict] },
  { name: "left_bytes", title: "at requested", align: "right", text: (row) => leftText(row.left_bytes) },
  { name: "left_reserved_bytes", title: "at reserved", align: "right", text: (row) => leftText(row.left_reserved_bytes) },
  { name: "bytes_per_step", title: "leaks a step", align: "right", text: growthText, hint: "by rankmem leaks: all lines that leak on it" },
  { name: "steps_left", title: "full in", align: "right", text: stepsText },
  { hidden: true, name: "steps_left_reserved", title: "full in, at reserved", align: "right", text: (row) => (row.steps_left_reserved === null ? units.NOTHING : units.counted(row.steps_left_reserved, "step")) },
  { name: "peak_bytes", title: "peak requested", align: "right", text: bytes("peak_bytes") },
  { name: "reserved_peak_bytes", title: "peak reserved", align: "right", text: bytes("reserved_peak_bytes") },
  { name: "headroom_bytes", title: "headroom now", align: "right", text: bytes("headroom_bytes"), hint: "free on the device and unused in the allocator, by the last sample" },
  { hidden: true, name: "usable_bytes", title: "usable", align: "right", text: bytes("usable_bytes") },
  { hidden: true, name: "beyond_bytes", title: "beyond the allocator", align: "right", text: bytes("beyond_bytes") },
  { hidden: true, name: "low_bytes_per_step", title: "at least", align: "right", text: rate("low_bytes_per_step") },
  { hidden: true, name: "high_bytes_per_step", title: "at most", align: "right", text: rate("high_bytes_per_step") },
];

export function fitTablePanel(root) {
  let rows = [];
  let sort = null;
  const panel = new Panel(root, {
    id: "fit-table",
    title: "All ranks",
    reads: ["type", "size"],
    asks,
    empty: noEvents,
    show: (answer) => {
      rows = rowsOf(answer);
      panel.drawn = { rows };
      panel.note(`${units.count(rows.length)}${rows.length > ROWS_MOST ? `, of which ${units.count(ROWS_MOST)} are shown` : ""}; click a row: its steps`);
      draw();
    },
  });
  const draw = () => {
    const order = [...rows].sort(sort === null ? urgency : (a, b) => compared(a[sort.name], b[sort.name]) * (sort.descending ? -1 : 1));
    table.set(order.slice(0, ROWS_MOST), sort);
  };
  const table = new Table(panel.body, {
    columns: COLUMNS.map((column) => ({ ...column })),
    label: "all ranks and whether they fit",
    key: (row) => `${row.rank} ${row.device}`,
    onSort: (next) => {
      sort = next;
      draw();
    },
    onPick: open,
  });
  panel.tools.prepend(table.columnChooser());
  return panel;
}

// What is not known comes first, as less than all else.
function compared(a, b) {
  if (a === null || b === null) return (a !== null) - (b !== null);
  return a < b ? -1 : Number(a > b);
}
