// The panels of a device's segments: what is in them at an instant, the pools and streams they belong to, and the
// fragmentation over time, on which a click chooses the instant.

import * as api from "../api.js";
import { chooser, el, toggles } from "../dom.js";
import { refill } from "../focus.js";
import { FragmentationPlot, instantLines, LINES } from "../fragmentation.js";
import { tile } from "../links.js";
import { Panel } from "../panel.js";
import { HOLE, partLines, SegmentLines } from "../segments.js";
import { addPick, picks } from "../selection.js";
import { legendEntry, OLDER, shadeOf } from "../shades.js";
import * as session from "../session.js";
import * as state from "../state.js";
import { Table } from "../table.js";
import * as tip from "../tip.js";
import * as units from "../units.js";

const DEVICE = ["rank", "attempt", "device"];
const COLOURS = ["auto", "category", "operator", "line"];
const ZOOMS = [["1", "fit"], ["4", "×4"], ["16", "×16"]];
const TABLE_ROWS = 200;
const FRAMES_SHOWN = 14;
const NOT_KNOWN =
  "The segments of this device are not recorded: below are ranges of its blocks, where any are alive. A CPU has no segments; on a GPU rankmem run records them from the start.";

const NO_ADDRESSES = "The addresses of this device's blocks are not recorded: where they lay, and what lay between them, is not known.";

// The segments at the state's instant (seq; absent: the rank's peak).
export function segmentsPanel(root, { height = 300 } = {}) {
  let stacks = new Map();
  let hovered = null;
  let by = "category";
  const panel = new Panel(root, {
    id: "segments",
    title: "Segments at an instant",
    reads: [...DEVICE, "seq"],
    asks: () => {
      const chosen = session.chosenParameters();
      return chosen ? [[session.of("segments"), { ...chosen, seq: state.num("seq") }]] : "No rank has events.";
    },
    show: (answer) => {
      const { facts } = answer;
      const parts = answer.rows();
      panel.drawn = { parts, facts };
      panel.title(`Rank ${facts.rank} · ${facts.device} · ${facts.is_peak ? "at its peak, " : ""}after event ${units.count(facts.seq)}`);
      const unplaced = facts.num_without_address ? `${units.counted(facts.num_without_address, "block")} without an address are not drawn` : "";
      panel.note([facts.parts_left_out ? `${units.count(facts.parts_left_out)} small parts are not drawn` : "", unplaced].filter(Boolean).join("; "));
      refill(figures, ...tiles(facts));
      unknown.hidden = facts.knows_segments;
      unknown.textContent = parts.length || !facts.num_without_address ? NOT_KNOWN : NO_ADDRESSES;
      frame.hidden = pools.element.hidden = !facts.segments.length;
      stacks = new Map();
      by = colourBy(parts);
      plot.set(parts, facts);
      markPicked();
      pools.set(facts.pools);
      refill(legend, ...legendOf(parts, by));
    },
    table: () => ({
      columns: ["what", "size", "asked for", "category", "operator", "line", "address"],
      rows: [...(panel.drawn?.parts ?? [])]
        .sort((a, b) => b.size_bytes - a.size_bytes)
        .slice(0, TABLE_ROWS)
        .map((part) => [
          ["block", "pending free", "hole"][part.kind],
          units.bytes(part.size_bytes),
          units.bytes(part.requested_bytes),
          part.category ?? units.NOTHING,
          part.operator ?? units.NOTHING,
          part.line ?? units.NOTHING,
          part.address,
        ]),
    }),
  });
  const colours = chooser("colour of blocks", COLOURS.map((name) => [name, `colour: ${name}`]), colour(), (name) => state.change({ mapc: name }));
  const zooms = toggles("size of the picture", ZOOMS, "1", (zoom) => {
    zooms.set(zoom);
    plot.setZoom(Number(zoom));
  });
  panel.tools.prepend(zooms, colours);
  const unknown = el("p", { class: "message", hidden: true });
  const figures = el("div", { class: "tiles" });
  const legend = el("div", { class: "legend" });
  const frame = el("div", { class: "scroll lines" });
  panel.body.append(unknown, figures, frame, legend);
  const plot = new SegmentLines(frame, {
    height,
    label: "segments of the device with the blocks in them",
    colour: (part) => shadeOf(part[by]),
    hover: (part, segment, x, y) => hover(part, segment, x, y),
    leave: tip.hide,
    pick: (part) => part.kind !== HOLE && addPick("block", part.block),
  });
  const pools = new Table(panel.body, { columns: POOL_COLUMNS, label: "pools and streams", key: (row) => `${row.pool} ${row.stream}` });

  async function hover(part, segment, x, y) {
    hovered = part;
    if (!segment) {
      tip.hide();
      return;
    }
    const show = () => tip.showAt(plot.surface, x, y, [...partLines(part, segment), ...(stacks.get(part?.block) ?? [])]);
    show();
    if (!part || part.kind === HOLE || stacks.has(part.block)) return;
    stacks.set(part.block, []);
    try {
      const answer = await api.ask(session.of("block_stack"), { ...session.chosenParameters(), block: part.block });
      const frames = [...answer.column("frame")];
      stacks.set(part.block, frames.length ? ["stack:", ...frames.slice(0, FRAMES_SHOWN).map((each) => `  ${each}`)] : ["no stack is recorded"]);
    } catch (error) {
      stacks.set(part.block, [`its stack: ${error.message}`]);
    }
    if (hovered === part) show();
  }

  function markPicked() {
    const found = picks().find(({ kind }) => kind === "block");
    plot.mark(found ? Number(found.value) : null);
  }

  const stop = state.listen((changed) => {
    if (changed.has("pick")) markPicked();
    if (changed.has("mapc") && panel.drawn) {
      colours.value = colour();
      by = colourBy(panel.drawn.parts);
      refill(legend, ...legendOf(panel.drawn.parts, by));
      plot.surface.draw();
    }
  });
  return {
    panel,
    plot,
    refresh: () => panel.refresh(),
    destroy: () => {
      stop();
      panel.destroy();
      plot.destroy();
    },
  };
}

// Fragmentation over the range of time; a click chooses the instant.
export function fragmentationPanel(root, { height = 220 } = {}) {
  let columns = null;
  const panel = new Panel(root, {
    id: "fragmentation",
    title: "Fragmentation over time",
    reads: [...DEVICE, "from", "to"],
    asks: () => {
      const chosen = session.chosenParameters();
      const [from, to] = [state.num("from"), state.num("to")];
      return chosen ? [[session.of("fragmentation"), { ...chosen, from, to }]] : "No rank has events.";
    },
    empty: "Fragmentation is not known here: the segments of this device are not recorded.",
    show: (answer) => {
      columns = Object.fromEntries(answer.names.map((name) => [name, [...answer.column(name)]]));
      panel.drawn = columns;
      const { facts } = answer;
      const all = facts.exact ? "after every event" : `at ${units.count(answer.length)} of ${units.count(facts.events)} events, its peak and failures among them; between them it is not known`;
      const cut = facts.cut_seq === null ? "" : `; left out from event ${units.count(facts.cut_seq)} on: the range has more than ${units.count(facts.rows_max)} blocks`;
      panel.note(`${all}${cut}. Click to see an instant.`);
      plot.set(columns, ...rangeOf(columns.time_ns));
      mark(facts.peak_seq);
    },
    table: () => ({
      columns: ["event", "time", "reserved", "in blocks", "unused", "largest hole", "fragmentation"],
      rows: columns.seq.map((seq, i) => [
        units.count(seq),
        units.time(columns.time_ns[i]),
        units.bytes(columns.reserved_bytes[i]),
        units.bytes(columns.used_bytes[i]),
        units.bytes(columns.unused_bytes[i]),
        units.bytes(columns.largest_free_bytes[i]),
        units.share(columns.fragmentation[i]),
      ]),
    }),
  });
  const plot = new FragmentationPlot(panel.body, {
    height,
    label: "reserved bytes, bytes in blocks, largest hole and fragmentation over time",
    range: session.range,
    limits: session.limits,
    hover: (place, x, y) => tip.showAt(plot.surface, x, y, instantLines(columns, place)),
    leave: tip.hide,
    pick: (place) => state.change({ seq: columns.seq[place] }),
  });
  panel.body.append(
    el("div", { class: "legend" }, ...LINES.map(([, title, colour_]) => legendEntry(title, colour_)), legendEntry("fragmentation: unused beyond the largest hole", "#cc79a7")),
  );

  function rangeOf(times) {
    const [from, to] = [state.num("from"), state.num("to")];
    return from !== null && to !== null ? [from, to] : [times[0], endOf(times)];
  }

  // A little after the last instant, so that it can be seen and clicked.
  function endOf(times) {
    const last = times[times.length - 1];
    return Math.ceil(last + Math.max(1, (last - times[0]) / 100));
  }

  function mark(peakSeq = panel.answers[0]?.facts.peak_seq) {
    if (!columns) return;
    const seq = state.num("seq") ?? peakSeq;
    const place = columns.seq.findLastIndex((each) => each <= seq);
    plot.mark(place < 0 ? null : columns.time_ns[place]);
  }

  const stop = state.listen((changed) => changed.has("seq") && mark());
  return {
    panel,
    plot,
    refresh: () => panel.refresh(),
    destroy: () => {
      stop();
      panel.destroy();
      plot.destroy();
    },
  };
}

const POOL_COLUMNS = [
  { name: "pool", title: "pool", text: (row) => (row.is_known ? (row.pool ?? "default") : "outside of recorded segments") },
  { name: "stream", title: "stream", text: (row) => (row.is_known ? row.stream : units.NOTHING) },
  { name: "segments", title: "segments", align: "right", text: (row) => (row.is_known ? units.count(row.segments) : units.NOTHING) },
  { name: "blocks", title: "blocks", align: "right", text: (row) => units.count(row.blocks) },
  { name: "reserved", title: "reserved", align: "right", text: (row) => (row.is_known ? units.bytes(row.reserved_bytes) : units.NOTHING) },
  { name: "requested", title: "asked for", align: "right", text: (row) => units.bytes(row.requested_bytes) },
  { name: "rounding", title: "rounding loss", align: "right", text: (row) => (row.is_known ? units.bytes(row.used_bytes - row.requested_bytes) : units.NOTHING) },
  { name: "pending", title: "pending frees", align: "right", text: (row) => units.bytes(row.pending_bytes) },
  { name: "unused", title: "unused", align: "right", text: (row) => (row.is_known ? units.bytes(row.unused_bytes) : units.NOTHING) },
  { name: "largest", title: "largest hole", align: "right", text: (row) => (row.is_known ? units.bytes(row.largest_free_bytes) : units.NOTHING) },
];

function colour() {
  return state.choice("mapc", COLOURS);
}

// What colours stand for: as chosen, or by itself the first of which anything is known.
function colourBy(parts) {
  if (colour() !== "auto") return colour();
  const known = (part) => part.category && !["unknown", OLDER].includes(part.category);
  if (parts.some(known)) return "category";
  return ["line", "operator"].find((name) => parts.some((part) => part[name] && part[name] !== OLDER)) ?? "category";
}

function tiles(facts) {
  return [
    tile("reserved", units.bytes(facts.reserved_bytes), "of all segments"),
    tile("in blocks, asked for", units.bytes(facts.requested_bytes)),
    tile("rounding loss", units.bytes(facts.rounding_bytes), "blocks take multiples of 512 bytes"),
    tile("pending frees", units.bytes(facts.pending_bytes), "freed, but a stream may still use them"),
    tile("unused", units.bytes(facts.unused_bytes), "reserved and in no block"),
    tile("largest hole", units.bytes(facts.largest_free_bytes), "the largest unused piece in a row"),
    tile("fragmentation", units.share(facts.fragmentation), "the part of the unused bytes outside of the largest hole"),
    tile("in empty segments", units.bytes(facts.empty_bytes), "torch.cuda.empty_cache() would give these back"),
  ];
}

function legendOf(parts, by) {
  const bytes = new Map();
  for (const part of parts) if (part.kind !== HOLE) bytes.set(part[by], (bytes.get(part[by]) ?? 0) + part.size_bytes);
  const groups = [...bytes].sort((a, b) => b[1] - a[1]).slice(0, 12);
  return groups.map(([name, size]) => legendEntry(name, shadeOf(name), units.bytes(size)));
}
