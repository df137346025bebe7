// The panels of a failed allocation: what was asked for and what there was, why it failed, who held the
// memory, what the other ranks held then, and the last events before it.

import { chooser, el } from "../dom.js";
import { BLOCK_GROUPINGS } from "../facts.js";
import { refill } from "../focus.js";
import { insightPanel } from "../insight.js";
import { stateLink, tile } from "../links.js";
import { Panel } from "../panel.js";
import * as session from "../session.js";
import * as state from "../state.js";
import { Table } from "../table.js";
import * as units from "../units.js";
import { MEASURED, NOW, SETTINGS } from "./allocator.js";

const NOTHING_FAILED = "No allocation failed in this session.";
const GROUPS = BLOCK_GROUPINGS.map(([name]) => name);
const KINDS = {
  fragmented: "under another setting of the allocator the same requests find room",
  foreign: "other processes hold what lacks",
  single: "the request is more than half of what the device gives",
  leak: "lines leak on this device, and have grown by what lacks",
  spike: "what is alive and the request are more than the highest of the steps before",
  exhausted: "none of the other classes",
};

// All failures, the earliest first, and the chosen one in words. `chosen(failure or null, its number)` is told which it is.
export function failuresPanel(root, chosen) {
  let rows = [];
  const panel = new Panel(root, {
    id: "oom",
    title: "Allocations that failed",
    reads: ["failure"],
    asks: () => [[session.of("oom"), {}]],
    show: (answer) => {
      rows = answer.rows();
      panel.drawn = rows;
      if (!rows.length) {
        panel.say(`${NOTHING_FAILED} rankmem records failures of CUDA, NPU and CPU allocators by itself.`);
        chosen(null);
        return;
      }
      const failure = rows[failureNumber(rows.length) - 1];
      panel.note(rows.length === 1 ? "one failure" : `${units.count(rows.length)} failures; the earliest usually causes the others`);
      table.set(rows);
      table.mark(keyOf(failure));
      table.element.hidden = rows.length === 1;
      refill(words, ...inWords(failure));
      refill(tilesElement, ...tiles(failure));
      chosen(failure, rows.indexOf(failure) + 1);
    },
  });
  const table = new Table(panel.body, {
    columns: FAILURE_COLUMNS,
    key: keyOf,
    label: "failures",
    onPick: (row) => state.change({ failure: rows.indexOf(row) + 1 }),
  });
  const words = el("div", {});
  const tilesElement = el("div", { class: "tiles" });
  panel.body.prepend(words, tilesElement);
  return { panel, refresh: () => panel.refresh(), destroy: () => panel.destroy() };
}

// Why it failed, and whether a setting would have helped, as `rankmem oom --why` says. `lacking(bytes)` is told what lacked.
export function whyPanel(root, number, lacking) {
  const panel = insightPanel(root, {
    id: "oom_why",
    title: "Why it failed",
    reads: [],
    asks: () => [[session.of("insight/oom"), { failure: number }]],
    columns: SETTING_COLUMNS,
    told: ({ figures }) => {
      const kinds = figures.kinds ?? [];
      panel.note(kinds[0] ?? "");  // the answer itself names the others
      panel.noteElement.title = kinds.map((kind) => `${kind}: ${KINDS[kind]}`).join("\n");
      lacking(figures.lacks_bytes || null);
    },
  });
  return panel;
}

// What was alive on the failure's rank, by any grouping; `mark(bytes)` shows which groups hold what lacked.
export function heldPanel(root, failure) {
  const by = () => state.choice("by", GROUPS, "category");
  let short = null;
  const draw = () => {
    const total = panel.drawn.reduce((sum, row) => sum + row.live_bytes, 0);
    panel.note(`${units.bytes(total)} alive on rank ${failure.rank}${short === null ? "" : `; a group in bold holds more than the ${units.bytes(short)} that were missing`}`);
    table.set(panel.drawn.map((row) => ({ ...row, total })));
    for (const [i, row] of panel.drawn.entries()) {
      if (short !== null && row.live_bytes >= short) table.bodyElement.children[i].classList.add("enough");
    }
  };
  const panel = new Panel(root, {
    id: "oom_held",
    title: "Held then",
    reads: ["by"],
    asks: () => [[session.of("oom_held"), { ...placeOf(failure), by: by() }]],
    empty: "Nothing that is known was alive then.",
    show: (answer) => {
      panel.drawn = answer.rows();
      draw();
    },
  });
  panel.tools.prepend(chooser("group by", GROUPS.map((name) => [name, `by ${name}`]), by(), (value) => state.change({ by: value })));
  const table = new Table(panel.body, { columns: HELD_COLUMNS, key: (row) => row.group_name ?? "", label: "groups of blocks that were alive" });
  const mark = (bytes) => {
    short = bytes;
    if (panel.drawn) draw();
  };
  return { panel, mark, refresh: () => panel.refresh(), destroy: () => panel.destroy() };
}

// What every rank held at that instant.
export function ranksThenPanel(root, failure) {
  const panel = new Panel(root, {
    id: "oom_ranks",
    title: "All ranks at that instant",
    reads: [],
    asks: () => [[session.of("oom_ranks"), placeOf(failure)]],
    empty: "What the ranks held at that instant is not known: their recordings have no common clock.",
    show: (answer) => {
      panel.drawn = answer.rows();
      panel.note(answer.length === 1 ? "one device" : `${units.count(answer.length)} devices, the highest first`);
      table.set(panel.drawn);
      table.mark(`${failure.attempt} ${failure.rank} ${failure.device}`);
    },
  });
  const table = new Table(panel.body, {
    columns: RANK_COLUMNS,
    key: (row) => `${row.attempt} ${row.rank} ${row.device}`,
    label: "what ranks held",
    onPick: (row) => state.change({ view: "segments", rank: row.rank, attempt: row.attempt, device: row.device, seq: row.seq }),
  });
  return { panel, refresh: () => panel.refresh(), destroy: () => panel.destroy() };
}

// The last events of the failure's device.
export function lastEventsPanel(root, failure) {
  const panel = new Panel(root, {
    id: "oom_events",
    title: "The last events before it",
    reads: [],
    asks: () => [[session.of("oom_events"), placeOf(failure)]],
    empty: "No event of this device is recorded before the failure.",
    show: (answer) => {
      panel.drawn = answer.rows();
      panel.note(`${units.count(answer.length)} events, the latest first`);
      table.set(panel.drawn);
    },
  });
  const table = new Table(panel.body, {
    columns: EVENT_COLUMNS,
    key: (row) => row.seq,
    label: "events before the failure",
    onPick: (row) => state.change({ view: "segments", rank: failure.rank, attempt: failure.attempt, device: failure.device, seq: row.seq }),
  });
  return { panel, refresh: () => panel.refresh(), destroy: () => panel.destroy() };
}

const NONE = units.NOTHING;
const SETTING_COLUMNS = [
  SETTINGS,
  { name: "runs", title: "runs", text: (row) => (row.runs === null ? "not known" : row.runs ? "yes" : "no"), hint: "whether the same requests find room" },
  { name: "needs", title: "needs", align: "right", text: (row) => units.bytes(row.needed_bytes) },
  { name: "lacks", title: "lacks", align: "right", text: (row) => units.signedBytes(row.lacks_bytes), hint: "what it needs less what the device gave" },
  NOW,
  MEASURED,
];
const FAILURE_COLUMNS = [
  { name: "time", title: "at", align: "right", text: (row) => units.time(row.time_ns) },
  { name: "rank", title: "rank", align: "right", text: (row) => units.count(row.rank) },
  { name: "device", title: "device", text: (row) => row.device },
  { name: "size", title: "asked for", align: "right", text: (row) => units.bytes(row.size_bytes) },
  { name: "free", title: "free on the device", align: "right", text: (row) => units.bytes(row.device_free_bytes) },
  { name: "unused", title: "unused", align: "right", text: (row) => units.bytes(row.unused_bytes) },
  { name: "largest", title: "largest hole", align: "right", text: (row) => units.bytes(row.largest_free_bytes) },
  { name: "operator", title: "operator", text: (row) => row.operator ?? NONE },
  { name: "line", title: "line", isPath: true, text: (row) => row.line ?? NONE },
];
const HELD_COLUMNS = [
  { name: "group", title: "group", isPath: true, text: (row) => row.group_name ?? "none" },
  { name: "bytes", title: "bytes", align: "right", text: (row) => units.bytes(row.live_bytes) },
  { name: "share", title: "share", align: "right", text: (row) => units.share(row.total ? row.live_bytes / row.total : null) },
  { name: "blocks", title: "blocks", align: "right", text: (row) => units.count(row.live_allocations) },
  { name: "largest", title: "largest block", align: "right", text: (row) => units.bytes(row.largest_bytes) },
];
const RANK_COLUMNS = [
  { name: "rank", title: "rank", align: "right", text: (row) => units.count(row.rank) },
  { name: "device", title: "device", text: (row) => row.device },
  { name: "host", title: "host", text: (row) => row.host_name ?? NONE },
  { name: "bytes", title: "held", align: "right", text: (row) => units.bytes(row.requested_bytes) },
  { name: "time", title: "last event", align: "right", text: (row) => units.time(row.time_ns) },
];
const EVENT_COLUMNS = [
  { name: "seq", title: "event", align: "right", text: (row) => units.count(row.seq) },
  { name: "time", title: "at", align: "right", text: (row) => units.time(row.time_ns) },
  { name: "action", title: "action", text: (row) => row.action },
  { name: "size", title: "size", align: "right", text: (row) => units.bytes(row.size_bytes) },
  { name: "requested", title: "alive after", align: "right", text: (row) => units.bytes(row.requested_bytes) },
  { name: "reserved", title: "reserved", align: "right", text: (row) => units.bytes(row.reserved_bytes) },
  { name: "operator", title: "operator", text: (row) => row.operator ?? NONE },
  { name: "category", title: "category", text: (row) => row.category ?? NONE },
  { name: "line", title: "line", isPath: true, text: (row) => row.line ?? NONE },
  { name: "stream", title: "stream", align: "right", text: (row) => row.stream ?? NONE },
  { name: "address", title: "address", text: (row) => row.address ?? NONE },
];

function failureNumber(many) {
  const isOne = (text) => /^\d{1,9}$/.test(text) && Number(text) >= 1 && Number(text) <= many;
  return state.read("failure", (text) => (isOne(text) ? Number(text) : null), `the first of ${units.count(many)} is shown`) ?? 1;
}

function placeOf({ rank, attempt, device, seq }) {
  return { rank, attempt, device, seq };
}

function keyOf(failure) {
  return Object.values(placeOf(failure)).join(" ");
}

function tiles(failure) {
  const onHost = failure.device.startsWith("cpu");
  return [
    tile("asked for", units.bytes(failure.size_bytes), onHost ? null : "rounded up by the allocator"),
    tile(onHost ? "free on the host" : "free on the device", units.bytes(failure.device_free_bytes)),
    tile("alive", units.bytes(failure.requested_bytes)),
    tile("reserved", units.bytes(failure.reserved_bytes)),
    tile("unused of that", units.bytes(failure.unused_bytes)),
    tile("largest hole", units.bytes(failure.largest_free_bytes)),
    tile("fragmentation", units.share(failure.fragmentation)),
    tile("beyond PyTorch", units.bytes(failure.app_bytes), "what the process holds beyond the allocator"),
    tile("of the device", units.bytes(failure.device_total_bytes), "its memory"),
  ];
}

function inWords(failure) {
  const who = failure.operator ?? "A call outside of any operator";
  const where = `rank ${failure.rank}, ${failure.device}${failure.host_name ? ` of ${failure.host_name}` : ""}, at ${units.time(failure.time_ns)}`;
  const lines = [el("p", {}, el("b", {}, `${who} asked for ${units.bytes(failure.size_bytes)}`), ` on ${where}`, failure.line ? `, at ${failure.line}` : "", ".")];
  if (failure.settings) lines.push(el("p", { class: "note" }, `Settings of the allocator: ${failure.settings}`));
  lines.push(el("p", {}, stateLink({ view: "segments", ...placeOf(failure) }, {}, "The device's segments at that instant")));
  return lines;
}
