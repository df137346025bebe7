// The panels of a failed allocation: what was asked for and what there was, what would have sufficed, who held the
// memory, what the other ranks held then, and the last events before it.

import { chooser, el } from "../dom.js";
import { BLOCK_GROUPINGS } from "../facts.js";
import { refill } from "../focus.js";
import { stateLink, tile } from "../links.js";
import { Panel } from "../panel.js";
import * as session from "../session.js";
import * as state from "../state.js";
import { Table } from "../table.js";
import * as units from "../units.js";

const NOTHING_FAILED = "No allocation failed in this session.";
const GROUPS = BLOCK_GROUPINGS.map(([name]) => name);
const ENOUGH = {
  limit: (bytes) => `The device had ${bytes} free, which was enough: a limit on the process stopped it (set_per_process_memory_fraction, ulimit, a container's limit).`,
  elsewhere: (bytes) => `A piece of ${bytes} lay unused in reserved memory, which was enough: it belonged to another stream or pool, or could not be split (max_split_size_mb).`,
  whole: (bytes) => `Unused and free memory together, ${bytes}, would have been enough in one piece: try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or torch.cuda.empty_cache() before it.`,
  more: (bytes) => `A device with ${bytes} more, all else equal.`,
  less: (bytes) => `Or ${bytes} freed before, together with what was unused and free in one piece.`,
};

// All failures, the earliest first, and the chosen one in words. `chosen(failure or null)` is told which it is.
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
      chosen(failure);
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

// What was alive on the failure's rank, by any grouping.
export function heldPanel(root, failure) {
  const by = () => state.choice("by", GROUPS, "category");
  const panel = new Panel(root, {
    id: "oom_held",
    title: "Held then",
    reads: ["by"],
    asks: () => [[session.of("oom_held"), { ...placeOf(failure), by: by() }]],
    empty: "Nothing that is known was alive then.",
    show: (answer) => {
      panel.drawn = answer.rows();
      const total = panel.drawn.reduce((sum, row) => sum + row.live_bytes, 0);
      const short = shortOf(failure);
      panel.note(`${units.bytes(total)} alive on rank ${failure.rank}${short === null ? "" : `; a group in bold holds more than the ${units.bytes(short)} that were missing`}`);
      table.set(panel.drawn.map((row) => ({ ...row, total, short })));
      for (const [i, row] of panel.drawn.entries()) {
        if (short !== null && row.live_bytes >= short) table.bodyElement.children[i].classList.add("enough");
      }
    },
  });
  panel.tools.prepend(chooser("group by", GROUPS.map((name) => [name, `by ${name}`]), by(), (value) => state.change({ by: value })));
  const table = new Table(panel.body, { columns: HELD_COLUMNS, key: (row) => row.group_name ?? "", label: "groups of blocks that were alive" });
  return { panel, refresh: () => panel.refresh(), destroy: () => panel.destroy() };
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
const FAILURE_COLUMNS = [
  { name: "time", title: "at", align: "right", text: (row) => units.time(row.time_ns) },
  { name: "rank", title: "rank", align: "right", text: (row) => units.count(row.rank) },
  { name: "device", title: "device", text: (row) => row.device },
  { name: "size", title: "asked for", align: "right", text: (row) => units.bytes(row.size_bytes) },
  { name: "free", title: "free on the device", align: "right", text: (row) => units.bytes(row.device_free_bytes) },
  { name: "unused", title: "unused", align: "right", text: (row) => units.bytes(row.unused_bytes) },
  { name: "largest", title: "largest hole", align: "right", text: (row) => units.bytes(row.largest_free_bytes) },
  { name: "operator", title: "operator", text: (row) => row.operator ?? NONE },
  { name: "line", title: "line", text: (row) => row.line ?? NONE },
];
const HELD_COLUMNS = [
  { name: "group", title: "group", text: (row) => row.group_name ?? "none" },
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
  { name: "action", title: "action", text: (row) => row.action.replaceAll("_", " ") },
  { name: "size", title: "size", align: "right", text: (row) => units.bytes(row.size_bytes) },
  { name: "requested", title: "alive after", align: "right", text: (row) => units.bytes(row.requested_bytes) },
  { name: "reserved", title: "reserved", align: "right", text: (row) => units.bytes(row.reserved_bytes) },
  { name: "operator", title: "operator", text: (row) => row.operator ?? NONE },
  { name: "category", title: "category", text: (row) => row.category ?? NONE },
  { name: "line", title: "line", text: (row) => row.line ?? NONE },
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

// How many bytes more would have been enough; null where that is not known.
function shortOf(failure) {
  const found = [...(failure.enough ?? [])].map((each) => each.split(":"));
  const less = found.find(([code]) => code === "less") ?? found.find(([code]) => code === "more");
  return less ? Number(less[1]) : null;
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
  const enough = [...(failure.enough ?? [])].map((each) => each.split(":"));
  const texts = enough.map(([code, bytes]) => ENOUGH[code](units.bytes(Number(bytes))));
  lines.push(
    texts.length
      ? el("p", {}, "What would have sufficed: ", texts.join(" "))
      : el("p", { class: "note" }, "What would have sufficed is not known: the free memory of the device was not recorded."),
  );
  if (failure.settings) lines.push(el("p", { class: "note" }, `Settings of the allocator: ${failure.settings}`));
  lines.push(el("p", {}, stateLink({ view: "segments", ...placeOf(failure) }, {}, "The device's segments at that instant")));
  return lines;
}
