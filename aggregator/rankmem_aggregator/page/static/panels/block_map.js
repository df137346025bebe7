// The panel of the block map: PyTorch's active memory timeline, with an axis of time or events, and the blocks at their
// addresses. Hovering shows a block with its stack, a click picks it.

import { addressParameters, allAddresses } from "../addresses.js";
import * as api from "../api.js";
import { BlockMap } from "../block_map.js";
import { announce, button, chooser, el, toggles } from "../dom.js";
import { BLOCK_GROUPINGS } from "../facts.js";
import { keepFocus, refill } from "../focus.js";
import { Panel } from "../panel.js";
import { lifeOf, pickedRow } from "../picked_block.js";
import { chips, isPicked, picksBut, togglePick } from "../selection.js";
import { legendEntry, orderedShades, shadeOf } from "../shades.js";
import * as session from "../session.js";
import * as state from "../state.js";
import * as tip from "../tip.js";
import * as units from "../units.js";

const KINDS = [
  ["stacked", "by age", "blocks stacked by age, the oldest at the bottom"],
  ["address", "by address", "blocks at their addresses, without the gaps between segments"],
];
const AXES = [
  ["event", "events", "the position in the rank's log"],
  ["time", "time", "time since the session's start"],
];
const COLOURS = ["auto", ...BLOCK_GROUPINGS.map(([name]) => name), "age"];
const FRAMES_SHOWN = 14;
const STACK_WAIT_MS = 60;
const WIDTH_STEP = 16;
const TABLE_ROWS = 100;

// Builds the panel; returns it with refresh() and destroy().
export function blockMapPanel(root, { height = 300 } = {}) {
  let rows = [];
  let facts = null;
  let stacks = new Map();
  let waiting = 0;
  let marking = null;

  const panel = new Panel(root, {
    id: "block_map",
    title: "Block map",
    reads: ["from", "to", "rank", "attempt", "device", "pick", "map", "mapx", "mapc", "mapa"],
    asks: () => {
      kinds.set(kind());
      axes.set(axis());
      const chosen = session.chosenParameters();
      if (!chosen) return "No rank has events.";
      const width = Math.min(2048, Math.max(320, Math.ceil((panel.body.clientWidth || 800) / WIDTH_STEP) * WIDTH_STEP));
      const [from, to] = [state.num("from"), state.num("to")];
      const asked = { ...chosen, from, to, seq: state.num("seq"), width, height, kind: kind(), axis: axis(), colour: colour() };
      const addresses = kind() === "address" ? addressParameters() : {};
      keepFocus(panel.tools, () => (whole.hidden = !addresses.address_from));
      return [[session.of("map"), { ...asked, ...addresses, pick: picksBut("block") }]];
    },
    empty: "No block of this rank was alive in this range, or none that is picked, or none at these addresses.",
    show: (answer) => {
      ({ facts } = answer);
      rows = answer.rows();
      stacks = new Map();
      colours.value = colour();
      colours.title = `colour of blocks: ${facts.colour}`;
      const shades = facts.colour === "age" ? orderedShades(facts.groups) : facts.groups.map(shadeOf);
      const others = facts.kind === "stacked" ? facts.raster_groups.map(() => shadeOf("others")) : shades;
      plot.set(answer, shades, others);
      markAll();
      panel.drawn = { ...plot.rects, facts: { ...facts, raster: facts.raster.length, raster_group: null }, blocks: answer.column("block") };
      panel.note(noteOf(facts, answer.length));
      const named = facts.groups.map((name, i) => [name, shades[i]]);
      if (facts.raster && facts.kind === "stacked") named.push([facts.raster_groups[0], others[0]]);
      refill(legend, ...named.map(([name, colour_]) => legendEntry(name, colour_)));
    },
    table: () => ({
      columns: ["size", "category", "operator", "line", "allocated", "freed", "address"],
      rows: [...rows]
        .sort((a, b) => b.size_bytes - a.size_bytes)
        .slice(0, TABLE_ROWS)
        .map((row) => [
          units.bytes(row.size_bytes),
          row.category ?? units.NOTHING,
          row.operator ?? units.NOTHING,
          row.line ?? units.NOTHING,
          units.time(row.allocated_ns),
          units.time(row.freed_ns),
          row.address ?? units.NOTHING,
        ]),
    }),
  });

  const kinds = toggles("arrangement of blocks", KINDS, "stacked", (value) => state.change({ map: value }));
  const axes = toggles("axis to the right", AXES, "event", (value) => state.change({ mapx: value }));
  const colours = chooser("colour of blocks", COLOURS.map((name) => [name, `colour: ${name}`]), colour(), (value) => state.change({ mapc: value }));
  const whole = button("all addresses", allAddresses, { class: "quiet", title: "on the axis of addresses the wheel zooms and dragging marks a part" });
  panel.tools.prepend(kinds, whole, axes, colours);
  const legend = el("div", { class: "legend" });
  const plot = new BlockMap(panel.body, {
    height,
    label: "blocks of the chosen rank over its log",
    range: session.range,
    limits: session.limits,
    hover: (block, x, y) => hover(block, x, y),
    leave: () => {
      clearTimeout(waiting);
      tip.hide();
    },
    pick: (block) => pick(block),
  });
  panel.body.append(legend);
  const endChips = chips(panel);

  function hover(block, x, y) {
    clearTimeout(waiting);
    if (block === null) {
      tip.hide();
      return;
    }
    const row = rows[block];
    if (row.stack === null) stacks.set(row.block, framesOf([]));
    tip.showAt(plot.surface, x, y, [...linesOf(row), ...(stacks.get(row.block) ?? [])]);
    if (stacks.has(row.block)) return;
    waiting = setTimeout(async () => {
      try {
        const answer = await api.ask(session.of("block_stack"), { ...session.chosenParameters(), block: row.block });
        stacks.set(row.block, framesOf(answer.column("frame")));
      } catch (error) {
        stacks.set(row.block, [`its stack: ${error.message}`]);
      }
      if (rows[plot.hovered] === row) tip.showAt(plot.surface, x, y, [...linesOf(row), ...stacks.get(row.block)]);
    }, STACK_WAIT_MS);
  }

  function pick(block) {
    if (block < 0) return;
    togglePick("block", rows[block].block);
    announce(linesOf(rows[block]).join(", "));
  }

  function markAll() {
    plot.mark(new Set(rows.flatMap((row, i) => (isPicked("block", row.block) ? [i] : []))), seqOf());
    markLife();
  }

  // The life of the picked block, also where it is among those that are too small to be drawn.
  async function markLife() {
    const mine = (marking = {});
    const life = lifeOf(await pickedRow());
    if (marking !== mine || !panel.drawn) return;
    panel.drawn.life = life;
    plot.setLife(life);
  }

  function seqOf() {
    return state.num("seq") ?? session.chosen()?.peak_seq ?? null;
  }

  // A new instant moves the line; where it lies outside of a cut range, the picture moves.
  const stop = state.listen((changed) => {
    if (!changed.has("seq") || !facts) return;
    const seq = seqOf();
    if (facts.is_cut && seq !== null && (seq < facts.seq_first || seq > facts.seq_last)) panel.refresh();
    else markAll();
  });

  return {
    panel,
    plot,
    refresh: () => panel.refresh(),
    destroy: () => {
      stop();
      endChips();
      clearTimeout(waiting);
      panel.destroy();
      plot.destroy();
    },
  };
}

function kind() {
  return state.choice("map", KINDS.map(([name]) => name));
}

function axis() {
  return state.choice("mapx", AXES.map(([name]) => name));
}

function colour() {
  return state.choice("mapc", COLOURS);
}

function noteOf(facts, drawn) {
  const parts = [];
  if (facts.is_cut) parts.push(`${units.count(facts.events)} events around the instant; zoom in for others`);
  else parts.push(facts.events === 1 ? "1 event" : `${units.count(facts.events)} events`);
  const smaller = facts.num_blocks - drawn;
  parts.push(smaller ? `${units.count(drawn)} largest of ${units.count(facts.num_blocks)} blocks one by one, the others by pixel` : `all ${units.count(drawn)} blocks`);
  if (facts.num_without_address) parts.push(`${units.count(facts.num_without_address)} blocks without an address are not shown`);
  return parts.join(" · ");
}

// What the tip says of a block.
function linesOf(row) {
  const made = row.allocated_ns === null ? "before the recording" : `allocated ${units.time(row.allocated_ns)}, event ${units.count(row.block)}`;
  const life = row.allocated_ns === null || row.freed_ns === null ? "" : `, after ${units.duration(row.freed_ns - row.allocated_ns)}`;
  const freed = row.freed_seq === null ? "not freed" : `freed ${units.time(row.freed_ns)}, event ${units.count(row.freed_seq)}${life}`;
  return [
    `${units.bytes(row.size_bytes)} · ${row.operator ?? "no operator"}`,
    [row.category, row.phase, row.step === null ? null : `step ${row.step}`].filter(Boolean).join(" · "),
    row.module,
    row.line,
    `${made}; ${freed}`,
    [row.address, row.stream === null ? null : `stream ${row.stream}`, row.pool === null ? null : `pool ${row.pool}`].filter(Boolean).join(" · "),
  ].filter(Boolean);
}

function framesOf(frames) {
  const shown = [...frames].slice(0, FRAMES_SHOWN).map((frame) => `  ${frame}`);
  if (frames.length > FRAMES_SHOWN) shown.push(`  … ${frames.length - FRAMES_SHOWN} more frames`);
  return frames.length ? ["stack:", ...shown] : ["no stack is recorded"];
}
