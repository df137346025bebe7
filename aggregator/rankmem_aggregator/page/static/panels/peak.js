// The job's highest instant: how high and how sure, what each rank or group of ranks held then, and what that was.

import { Bars } from "../bars.js";
import { coloursOf } from "../colours.js";
import { button, chooser, el, setOptions } from "../dom.js";
import { BLOCK_GROUPINGS } from "../facts.js";
import { refill } from "../focus.js";
import { tile } from "../links.js";
import { Panel, partsOf } from "../panel.js";
import { picks, togglePick } from "../selection.js";
import * as session from "../session.js";
import { legendEntry, swatch } from "../shades.js";
import * as state from "../state.js";
import * as tip from "../tip.js";
import * as units from "../units.js";

const BLOCKS_BY = BLOCK_GROUPINGS.map(([name]) => name);
const COORDINATES = ["pp", "tp", "dp", "cp", "ep"];
const TOLD_APART = 11;

// What the blocks are grouped by: the state's, where it is a grouping of blocks.
function blocksBy() {
  return state.choice("by", BLOCKS_BY);
}

// The ways in which the session's ranks can be put together; the first tells the most at a glance.
function ranksBy() {
  const { ranks } = session.job();
  const differ = (of) => new Set(ranks.map(of)).size > 1;
  const known = COORDINATES.filter((name) => differ((row) => row[name]));
  const hosts = differ((row) => row.host_name) ? ["host"] : [];
  const few = new Set(ranks.map((row) => row.rank)).size <= 16;
  return few ? ["rank", ...known, ...hosts, "job"] : [...known, ...hosts, "rank", "job"];
}

// Why there is no highest instant.
function whyNone({ facts }) {
  if (!facts.left_out) return `No rank has events, so there is no highest instant. ${session.command("status")} says what each rank sent.`;
  return "The ranks' recordings have no times, so there is no instant at which all can be added up. Each rank's own peak is in the view Job.";
}

export function peakSumPanel(root) {
  const panel = new Panel(root, {
    id: "peak-sum",
    title: "The job's highest instant",
    reads: ["type"],
    asks: () => [[session.of("peak"), { device_type: state.get("type") }]],
    show: (answer) => {
      const { bound, device_types: types, device_type: type, running, as_of_ns: until, left_out: out } = answer.facts;
      if (!bound) {
        panel.say(whyNone(answer));
        return;
      }
      panel.drawn = { bound, types, type };
      setOptions(device, types, type);
      device.hidden = types.length < 2;
      panel.note(running ? `of ${type}, as of ${units.time(until)}: the job is running` : `of ${type}`);
      refill(
        tiles,
        tile("all ranks together", units.bytes(bound.job_peak_bytes)),
        tile("at", units.time(bound.job_peak_ns)),
        tile("ranks that held something", units.count(bound.num_ranks)),
        tile("if every rank peaked at once", units.bytes(bound.sum_of_peaks_bytes), "the ranks' own peaks added up"),
        tile("more than at the instant", units.signedBytes(bound.gap_bytes)),
      );
      certainty.textContent = `${howSure(bound)}${out ? ` ${units.counted(out, "rank")} without a clock: in no sum.` : ""}`;
    },
    table: () => ({
      columns: ["figure", "value"],
      rows: Object.entries(panel.drawn?.bound ?? {}).map(([name, value]) => [name, value ?? "not known"]),
    }),
  });
  const device = chooser("type of device", [], null, (type) => state.change({ type }));
  device.hidden = true;
  panel.tools.prepend(device);
  const tiles = el("div", { class: "tiles" });
  const certainty = el("p", { class: "note" });
  panel.body.append(tiles, certainty);
  return panel;
}

// How sure the peak is, in a sentence.
function howSure(bound) {
  const { clock_error_ns: error, lowest_bytes: low, highest_bytes: high, is_exact: exact, at_least_bytes: least } = bound;
  const missing =
    exact === false
      ? `Events are missing: the true peak is ${least === null ? "not known" : `at least ${units.bytes(least)}`}.`
      : exact === null
        ? "Whether events are missing is not known."
        : "No event is missing.";
  if (error === null) return `${missing} The clocks of the hosts were never compared, so the order between hosts is not certain.`;
  if (bound.order_is_certain) return `${missing} ${error ? `The clocks agree to ${units.duration(error)}, and no event of another host is that near: exact.` : "All ranks share one clock: exact."}`;
  const range = low === null || high === null ? "" : `: they allow ${units.bytes(low)} to ${units.bytes(high)}`;
  return `${missing} The clocks agree to ${units.duration(error)}${range}.`;
}

export function peakRanksPanel(root) {
  const grouping = () => state.choice("of", ranksBy());
  const panel = new Panel(root, {
    id: "peak-ranks",
    title: "What each rank held then",
    reads: ["type", "of", "by", "pick"],
    asks: () => {
      const type = { device_type: state.get("type") };
      return [
        [session.of("peak_held"), { ...type, of: grouping(), by: blocksBy(), groups: TOLD_APART }],
        [session.of("peak"), type],
      ];
    },
    show: (held, shares) => {
      if (!held.length) {
        panel.say(whyNone(held));
        return;
      }
      const of = grouping();
      const names = groupsOf(held.rows());
      const colour = new Map(names.map((name, i) => [name, coloursOf(names.map((each) => each ?? "unknown"))[i]]));
      const rows = barsOf(of, held.rows(), shares.rows(), colour);
      panel.drawn = { of, by: blocksBy(), rows };
      panel.title(of === "rank" ? "What each rank held then" : of === "job" ? "What all ranks held then" : `What each ${of === "host" ? of : `${of} group`} held then`);
      const bar = of === "rank" || of === "host" ? of : `${of} group`;
      plot.of = `${bar}s`;
      panel.note(`${of === "job" ? "" : `${units.counted(rows.length, bar)}, `}by ${blocksBy()}; the tick: if its ranks had peaked at once`);
      ranks.value = of;
      blocks.value = blocksBy();
      refill(legend, ...names.map((name) => entry(name, colour.get(name))));
      plot.set({ rows, only: pickedNames() });
    },
    table: () => ({
      columns: [panel.drawn.of, "bytes", "own peaks", ...TABLE_PARTS],
      rows: panel.drawn.rows.flatMap((row) => row.parts.map((part) => [row.name, row.value, row.mark, part.label, part.value])),
    }),
  });
  // The bars' own: that of the shares is beside the sum.
  panel.sql = () => panel.answers[0]?.facts.sql ?? "";
  const ranks = chooser("ranks together by", ranksBy().map((name) => [name, name === "job" ? "one bar" : `bars by ${name}`]), grouping(), (name) => state.change({ of: name }));
  const blocks = chooser("parts of a bar by", BLOCKS_BY.map((name) => [name, `parts by ${name}`]), blocksBy(), (by) => state.change({ by }));
  panel.tools.prepend(ranks, blocks);
  const legend = el("div", { class: "legend" });
  panel.body.append(legend);
  const plot = new Bars(panel.body, {
    label: "bytes held at the job's peak, a bar for each rank or group of ranks; the button table shows them as text",
    hover: (row, part, x, y) =>
      tip.showAt(plot.surface, x, y, [
        row.title,
        part ? `${part.label}: ${units.bytes(part.value)}, ${units.share(part.value / row.value)}` : null,
        `${units.bytes(row.value)} at the job's peak, ${units.bytes(row.mark)} if its ranks had peaked at once`,
        row.highest ? `click beside the bar: rank ${row.highest.rank} at that instant; on a part: choose it` : null,
      ]),
    leave: tip.hide,
    pick: (row, part) => (part ? pick(part.name) : open(row.highest)),
  });
  return partsOf(panel, plot);
}

export function peakHeldPanel(root) {
  const panel = new Panel(root, {
    id: "peak-held",
    title: "What that was, over all ranks",
    reads: ["type", "by", "pick"],
    asks: () => [[session.of("peak_held"), { device_type: state.get("type"), of: "job", by: blocksBy() }]],
    show: (answer) => {
      if (!answer.length) {
        panel.say(whyNone(answer));
        return;
      }
      const found = answer.rows();
      const sum = found.reduce((bytes, row) => bytes + row.live_bytes, 0);
      const colours = coloursOf(found.map((row) => row.group_name ?? "unknown"));
      const rows = found.map((row, i) => {
        const name = labelOf(row);
        const part = { name: row.group_name, label: name, value: row.live_bytes, colour: colours[i] };
        const note = `${units.bytes(row.live_bytes)} · ${units.share(row.live_bytes / sum)} · ${units.counted(row.live_allocations, "block")} on ${units.counted(row.num_ranks, "rank")}`;
        return { name, note, parts: [part], row };
      });
      panel.drawn = { by: blocksBy(), rows: found };
      panel.note(`${units.counted(rows.length, "group")}, by ${blocksBy()}`);
      plot.set({ rows, only: pickedNames() });
    },
    table: () => ({
      columns: [panel.drawn.by, "bytes", "blocks", "largest", "ranks"],
      rows: panel.drawn.rows.map((row) => [labelOf(row), row.live_bytes, row.live_allocations, row.largest_bytes, row.num_ranks]),
    }),
  });
  const plot = new Bars(panel.body, {
    label: "bytes held at the job's peak by all ranks together, a bar for each group of blocks; the button table shows them as text",
    hover: (row, part, x, y) => tip.showAt(plot.surface, x, y, [row.name, row.note, `the largest block: ${units.bytes(row.row.largest_bytes)}`]),
    leave: tip.hide,
    pick: (row) => pick(row.parts[0].name),
  });
  return partsOf(panel, plot);
}

const TABLE_PARTS = ["group", "its bytes"];

// The groups in an answer, those that hold the most first, the rest ("others") last; null: blocks without one.
function groupsOf(rows) {
  const bytes = new Map();
  for (const row of rows) bytes.set(nameOf(row), (bytes.get(nameOf(row)) ?? 0) + row.live_bytes);
  return [...bytes.keys()].sort((a, b) => (a === "others") - (b === "others") || bytes.get(b) - bytes.get(a));
}

function nameOf(row) {
  return row.is_rest ? "others" : row.group_name;
}

function labelOf(row) {
  return nameOf(row) ?? `no ${blocksBy()}`;
}

// A bar for each group of ranks: its parts in the order of the colours, its total, its ranks' own peaks, its highest rank.
function barsOf(of, held, shares, colour) {
  const bars = new Map();
  const barOf = (name) => {
    const key = name ?? "";
    if (!bars.has(key)) bars.set(key, { key, parts: [], value: 0, mark: 0, ranks: 0, highest: null });
    return bars.get(key);
  };
  for (const share of shares) {
    const bar = barOf(of === "job" ? null : of === "host" ? share.host_name : share[of] === null ? null : String(share[of]));
    bar.mark += share.peak_bytes;
    bar.ranks += share.requested_bytes > 0;
    if (share.seq !== null && (!bar.highest || share.requested_bytes > bar.highest.requested_bytes)) bar.highest = share;
  }
  const order = [...colour.keys()];
  for (const row of held) {
    const bar = barOf(row.of_name);
    bar.parts.push({ name: nameOf(row), label: labelOf(row), value: row.live_bytes, colour: colour.get(nameOf(row)) });
    bar.value += row.live_bytes;
  }
  const rows = [...bars.values()].filter((bar) => bar.value || bar.mark);
  const sum = rows.reduce((bytes, bar) => bytes + bar.value, 0);
  for (const bar of rows) {
    bar.parts.sort((a, b) => order.indexOf(a.name) - order.indexOf(b.name));
    bar.name = of === "job" ? "all ranks" : bar.key === "" ? `no ${of}` : of === "host" ? bar.key : `${of} ${bar.key}`;
    bar.title = of === "rank" && bar.highest ? `${bar.name} · ${bar.highest.host_name} · ${bar.highest.device}` : `${bar.name}, ${units.counted(bar.ranks, "rank")}`;
    const held = `${units.bytes(bar.value)} · ${units.share(bar.value / Math.max(sum, 1))}`;
    bar.note = of === "rank" || !bar.highest ? held : `${held} · rank ${bar.highest.rank} highest, ${units.bytes(bar.highest.requested_bytes)}`;
  }
  const isNumber = COORDINATES.includes(of);
  return rows.sort((a, b) => (isNumber ? Number(a.key) - Number(b.key) : b.value - a.value));
}

function entry(name, colour) {
  const text = name ?? `no ${blocksBy()}`;
  if (name === "others") return legendEntry(text, colour);
  const choose = button("", () => pick(name), { class: "quiet", "aria-pressed": String(pickedNames()?.has(name) ?? false) });
  choose.append(swatch(colour), text);
  return choose;
}

// The groups picked, of a grouping; null: none, so that all are as they are.
export function pickedNames(by = blocksBy()) {
  const names = picks().filter(({ kind }) => kind === by).map(({ value }) => value);
  return names.length ? new Set(names.map((value) => (value === "" ? null : value))) : null;
}

function pick(name) {
  if (name !== "others") togglePick(blocksBy(), name ?? "");
}

// The rank at its event of the job's peak: what it held there is in the view Job.
function open(share) {
  if (!share) return;
  state.change({ view: "job", rank: share.rank, attempt: share.attempt, device: share.device, seq: share.seq });
}
