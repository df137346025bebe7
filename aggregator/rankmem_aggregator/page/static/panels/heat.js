// The heat map: all ranks over time, absolute, against the median of their group, or as headroom.

import * as api from "../api.js";
import { chooser, el, toggles } from "../dom.js";
import { binsOf, HEAT_ROWS } from "../early.js";
import { CELL_RANKS_MAX } from "../facts.js";
import * as groups from "../groups.js";
import { coloursOfCells, HeatMap } from "../heat.js";
import { matrixOf } from "../heat_matrix.js";
import { ASK_ALL, Panel } from "../panel.js";
import * as session from "../session.js";
import * as state from "../state.js";
import { onTheme } from "../theme.js";
import * as tip from "../tip.js";
import * as units from "../units.js";

const HOVER_MS = 80;
const HEIGHT = HEAT_ROWS + 36;
const KIND = { abs: "amount", median: "difference", headroom: "headroom" };
const MODES = [
  ["abs", "absolute", "bytes held"],
  ["median", "against median", "bytes more or less than the median of the rank's group at the same time"],
  ["headroom", "headroom", "bytes that the device could still give"],
];

const orders = () => ["rank", "peak", ...groups.groups().filter((name) => name !== "job")];
const order = () => state.choice("order", orders());
const mode = () => state.choice("mode", Object.keys(KIND));

export function heatPanel(root) {
  let map = null;
  const panel = new Panel(root, {
    id: "heat",
    title: "Ranks over time",
    reads: ["from", "to", "mode", "group", "order", "figure", "line", "type"],
    asks: () => {
      tools.refresh();
      const [from, to] = session.drawnRange();
      return [[session.of("heat"), { ...common(), from, to, ...shape(plot, to - from), order: order(), limit_bytes: groups.lineBytes() }]];
    },
    newer: ([path, parameters], since) => [path, session.cellNs() === null ? parameters : { ...parameters, since, low_bytes: map.low, high_bytes: map.high }],
    empty: "Nothing is known of any rank here: no rank has events of this kind in this range, or its device was not sampled. Choose another mode, or double click a diagram to see more of the time.",
    show: (answer) => {
      const found = matrixOf(answer, map, order());
      if (found === null) return ASK_ALL;
      map = found;
      hover.forget();
      hover.found = null;
      panel.drawn = map;
      panel.note(noteOf(map, answer.facts));
      scale.set(KIND[map.mode], answer.facts, map.cells.some((cell) => cell > 0));
      plot.surface.setHeight(Math.min(HEIGHT, 40 + map.rows.length * Math.max(1, Math.min(20, 240 / map.rows.length))));
      plot.set({ ...map, kind: KIND[map.mode] });
      plot.surface.label(`${panel.noteElement.textContent}; arrows up and down choose a rank`);
      mark();
      return null;
    },
    table: () => ({
      columns: ["ranks", "group", "of them", map.mode === "headroom" ? "least headroom" : "furthest"],
      rows: map.rows.map((row) => [row.label, row.group ?? units.NOTHING, `rank ${row.top}`, (map.mode === "median" ? units.signedBytes : units.bytes)(row.topBytes)]),
    }),
  });
  const tools = toolsOf(panel);
  const scale = scaleOf(panel);
  const hover = new Hover(() => map, () => plot);
  const plot = new HeatMap(panel.body, {
    height: HEIGHT,
    label: "memory of each rank over time",
    range: session.drawnRange,
    limits: session.limits,
    hover: (row, bin, x, y) => hover.over(row, bin, x, y),
    leave: () => hover.leave(),
    pick: (row, bin) => pick(map, hover, row, bin),
    step: (by) => {
      const row = Math.max(0, Math.min(map.rows.length - 1, rowOf(map, session.chosen()?.rank) + by));
      choose({ rank: map.rows[row].top });
    },
  });
  panel.hover = hover;
  const mark = () => map && plot.choose(rowOf(map, session.chosen()?.rank));
  const stop = state.listen((changed) => changed.has("rank") && mark());
  return {
    panel,
    plot,
    refresh: () => panel.refresh(),
    destroy: () => {
      stop();
      scale.destroy();
      hover.leave();
      panel.destroy();
      plot.destroy();
    },
  };
}

const rowOf = (map, rank) => map.rows.findIndex((row) => row.ranks.includes(rank));

const choose = ({ rank, attempt = null, device = null, seq = null }) => state.change({ rank, attempt, device, seq });

function common() {
  const chosen = mode();
  return { mode: chosen, group: chosen === "median" ? groups.group() : null, figure: groups.figure(), device_type: groups.deviceType() };
}

// As many rows and intervals as there are pixels for, none shorter than a nanosecond; of a running session its cells.
function shape(plot, length) {
  const cell = session.cellNs();
  if (cell !== null) return { rows: HEAT_ROWS, bins: (length + 1) / cell };
  return { rows: HEAT_ROWS, bins: Math.max(1, Math.min(binsOf(plot.surface.canvas.clientWidth || 1280), length)) };
}

function noteOf(map, facts) {
  const many = units.counted(map.ranks.length, "rank");
  const pooled = map.rows.length < map.ranks.length ? `; in a line ${{ abs: "the highest", median: "the furthest off", headroom: "the least" }[map.mode]} of its ranks` : "";
  const what = {
    abs: `${facts.figure} bytes`,
    median: `${facts.figure} bytes against the median of ${groups.group() === "job" ? "the job" : `their ${groups.group()}`}`,
    headroom: "headroom",
  }[map.mode];
  const how = facts.exact ? "" : "; from buckets of up to 64 events";
  const cut = facts.gaps_cut ? "; there are more gaps than are hatched here" : "";
  return `${many}, ${what}${pooled}${how}${cut}`;
}

// The tools of the panel; refresh() sets them to the state.
function toolsOf(panel) {
  const set = (key, absent) => (value) => state.change({ [key]: value === absent ? null : value });
  const modes = toggles("what is shown", MODES, mode(), set("mode", "abs"));
  const known = groups.groups();
  const group = chooser("whose median", known.map((name) => [name, `of ${name === "job" ? "the job" : name}`]), groups.group(), (value) => state.change({ group: value }));
  const rows = chooser("order of the rows", orders().map((name) => [name, `by ${name}`]), order(), set("order", "rank"));
  const figure = chooser("which bytes", groups.FIGURES, groups.figure(), set("figure", "requested"));
  const types = session.job().deviceTypes;
  const type = chooser("type of device", types, groups.deviceType(), set("type", types[0]));
  const above = el("input", {
    type: "number", min: 0, step: "any", class: "short", "aria-label": "mark what is above so many GiB",
    title: "cells above so many GiB are hatched", placeholder: "line at", onchange: () => state.change({ line: above.value }),
  });
  const unit = el("label", { class: "note" }, above, " GiB");
  panel.tools.prepend(modes, group, rows, figure, ...(types.length > 1 ? [type] : []), unit);
  return {
    refresh: () => {
      modes.set(mode());
      group.hidden = mode() !== "median";
      figure.hidden = mode() === "headroom";
      unit.hidden = mode() === "headroom";
      [group.value, rows.value, figure.value, type.value] = [groups.group(), order(), groups.figure(), groups.deviceType()];
      above.value = state.get("line") ?? "";
    },
  };
}

// The scale of the colours, with what its ends mean.
function scaleOf(panel) {
  const canvas = el("canvas", { width: 255, height: 1, class: "scale", role: "img", "aria-label": "scale of the colours" });
  const [low, high] = [el("span", {}), el("span", {})];
  const element = el("span", { class: "note scale-legend", hidden: true }, low, canvas, high);
  panel.noteElement.after(element);
  let kind = "amount";
  const draw = () => {
    const g = canvas.getContext("2d");
    const image = g.createImageData(255, 1);
    coloursOfCells(kind).slice(1).forEach((colour, i) => image.data.set([...colour, 255], i * 4));
    g.putImageData(image, 0, 0);
  };
  const destroy = onTheme(draw);
  return {
    destroy,
    set: (of, { low_bytes: least, high_bytes: most }, known) => {
      kind = of;
      const text = kind === "difference" ? units.signedBytes : units.bytes;
      [low.textContent, high.textContent] = [text(least), text(most)];
      canvas.title = kind === "difference" ? "by the square root, so that a small difference shows beside a large one" : "";
      element.hidden = !known;
      draw();
    },
  };
}

// The interval of a bin: the first and the last nanosecond in it, as the server counts.
function intervalOf({ from, to, bins }, bin) {
  const [span, count] = [BigInt(to) - BigInt(from) + 1n, BigInt(bins)];
  const begin = (at) => BigInt(from) + (BigInt(at) * span + count - 1n) / count;
  return [Number(begin(bin)), Number(begin(bin + 1) - 1n)];
}

// Asks for the exact bytes of the cell under the pointer, once it rests.
class Hover {
  constructor(map, plot) {
    Object.assign(this, { map, plot, key: null, found: null, waiting: null, timer: 0 });
  }

  over(row, bin, x, y) {
    const key = `${row}/${bin}`;
    if (key !== this.key) {
      this.forget();
      this.key = key;
      this.timer = setTimeout(() => this.ask(row, bin).then(() => this.key === key && this.show(row, bin, x, y), () => {}), HOVER_MS);
    }
    this.show(row, bin, x, y);
  }

  // The row of /cell that matters most there; null where nothing is known.
  async ask(row, bin) {
    const key = `${row}/${bin}`;
    if (this.found?.key === key) return this.found.row;
    // A click and a pointer that rests ask for one cell together.
    if (this.asking?.key !== key || this.waiting.signal.aborted) this.asking = { key, row: this.askNow(key, row, bin) };
    return this.asking.row;
  }

  async askNow(key, row, bin) {
    this.waiting?.abort();
    const { signal } = (this.waiting = new AbortController());
    const map = this.map();
    const { ranks, top } = map.rows[row];
    const [from, to] = intervalOf(map, bin);
    const asked = { ...common(), from, to, ranks: (ranks.length > CELL_RANKS_MAX ? [top] : ranks).join(",") };
    try {
      const answer = await api.ask(session.of("cell"), asked, signal);
      this.found = { key, row: answer.length ? answer.rows()[0] : null };
      return this.found.row;
    } finally {
      if (this.asking?.key === key) this.asking = null;
    }
  }

  show(row, bin, x, y) {
    const map = this.map();
    const [from, to] = intervalOf(map, bin);
    const { ranks, group } = map.rows[row];
    const when = `${units.time(from, (to - from) / 10)} to ${units.time(to, (to - from) / 10)}`;
    const found = this.found?.key === this.key ? this.found.row : undefined;
    const lines = found ? linesOf(found) : [ranks.length > 1 ? `ranks ${ranks[0]} to ${ranks[ranks.length - 1]}` : `rank ${ranks[0]}`, found === null ? "nothing is known" : "…"];
    const shared = ranks.length > 1 ? `of ${units.count(ranks.length)} ranks in this line` : null;
    this.lines = [...lines, shared, group, when].filter(Boolean);
    tip.showAt(this.plot().surface, x, y, this.lines);
  }

  leave() {
    this.forget();
    tip.hide();
  }

  forget() {
    clearTimeout(this.timer);
    this.waiting?.abort();
    this.key = null;
  }
}

// What a row of /cell says.
function linesOf(row) {
  const exact = (value) => `${units.bytes(value)} (${units.count(value)} B)`;
  return [
    `rank ${row.rank} · ${row.host_name ?? "unknown host"} · ${row.device}${row.attempt ? ` · attempt ${row.attempt}` : ""}`,
    row.headroom_bytes === null ? null : `headroom ${exact(row.headroom_bytes)}`,
    `${groups.figure()} ${exact(row.bytes)}`,
    row.median_bytes === null ? null : `${units.signedBytes(row.bytes - row.median_bytes)} against the median, ${units.bytes(row.median_bytes)}`,
    `since ${units.time(row.at_ns)}`,
  ].filter(Boolean);
}

// A click chooses the rank of the cell and the event of its highest.
async function pick(map, hover, row, bin) {
  const found = await hover.ask(row, bin).catch(() => null);
  if (!found) choose({ rank: map.rows[row].top });
  else choose({ ...found, seq: found.seq >= 0 ? found.seq : null });
}
