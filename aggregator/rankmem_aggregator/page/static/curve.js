// Bytes over time as steps: each value holds until the next row. A stack of areas, and lines over them.

import { boxOf, drawByteAxis, drawTimeAxis } from "./axes.js";
import { hoverAlone, timeGestures } from "./gestures.js";
import * as marks from "./marks.js";
import { Surface } from "./surface.js";
import { ink } from "./theme.js";

const ROOM_ABOVE = 1.04;
const TICK_PX = 6;
const LIFE_PX = 18;
const EVENT_LEAST_PX = 4;

export class CurvePlot {
  // range(), limits(): ns; hover(time, x, y), leave(), pick(time, x, y). Where what is below is no time, `isTimed` is false:
  // gestures do not change the range then, and marks are not drawn.
  constructor(parent, { height, label, range, limits, hover, leave, pick, isTimed = true }) {
    Object.assign(this, { isTimed, isSet: false, lines: [], areas: null, marks: [], life: null, band: null, cross: null, from: 0, to: 1, highest: 1, range });
    this.surface = new Surface(parent, { height, label, paint: (g) => this.paint(g) });
    (isTimed ? timeGestures : hoverAlone)(this.surface, {
      box: () => this.box,
      range,
      limits,
      hover: (x, y) => {
        this.cross = this.isInside(x) ? x : null;
        this.surface.draw();
        if (this.cross === null) leave?.();
        else hover?.(this.timeAt(x), x, y);
      },
      leave: () => {
        this.cross = null;
        this.surface.draw();
        leave?.();
      },
      pick: (x, y) => this.isInside(x) && pick?.(this.timeAt(x), x, y),
      brush: (x0, x1) => {
        this.band = x0 === null ? null : [x0, x1];
        this.surface.draw();
      },
    });
  }

  // Shows lines: [{name, colour, times, values, lows, dashed}], lows null or what each row fell to; areas:
  // {times, layers: [{name, colour, values}]} or null. Times ascend, in ns; null is where nothing is known. `ends` is
  // when the process ended, or null; `events` {times, actions}, which are ticked where there is room, or null.
  set({ lines, areas = null, from, to, ends = null, events = null }) {
    Object.assign(this, { isSet: true, lines, areas: areas && stacked(areas), from, to, ends, events });
    this.highest = Math.max(1, ...lines.map((line) => highestOf(line.values)), areas ? highestOf(this.areas.top) : 0);
    this.surface.draw();
  }

  // Vertical marks: [{time, colour, text}].
  setMarks(marks) {
    this.marks = marks;
    this.surface.draw();
  }

  // Marks the life of one block: {from, to, text}, null where it began before or lasts; null: none.
  setLife(life) {
    this.life = life;
    this.surface.draw();
  }

  get box() {
    return boxOf(this.surface.width, this.surface.height);
  }

  timeAt(x) {
    const box = this.box;
    return this.from + ((x - box.x) / box.width) * (this.to - this.from);
  }

  isInside(x) {
    return x >= this.box.x && x <= this.box.x + this.box.width;
  }

  paint(g) {
    if (!this.isSet) return; // no axis of nothing
    const box = this.box;
    const high = this.highest * ROOM_ABOVE;
    drawByteAxis(g, box, 0, high);
    drawTimeAxis(g, box, this.from, this.to);
    const x = (time) => box.x + ((time - this.from) / (this.to - this.from)) * box.width;
    const y = (value) => box.y + box.height - (value / high) * box.height;
    const end = x(Math.min(this.to, this.ends ?? this.to));
    g.save();
    g.beginPath();
    g.rect(box.x, box.y, box.width, box.height);
    g.clip();
    if (this.areas) paintAreas(g, this.areas, x, y, end);
    g.lineWidth = 1;
    for (const line of this.lines) paintLine(g, line, x, y, end);
    g.setLineDash([]);
    if (this.events && this.events.times.length * EVENT_LEAST_PX <= box.width) paintTicks(g, this.events, x, y(0));
    if (this.life) paintLife(g, box, x(this.life.from ?? this.from), x(this.life.to ?? this.to), this.life.text);
    this.paintMarks(g, box, x);
    if (this.isTimed) marks.draw(g, box, this.from, this.to);
    g.restore();
  }

  paintMarks(g, box, x) {
    g.textBaseline = "top";
    for (const { time, colour, text } of this.marks) {
      const at = Math.round(x(time)) + 0.5;
      g.strokeStyle = colour ?? ink("accent");
      g.fillStyle = g.strokeStyle;
      upright(g, box, at);
      if (!text) continue;
      const isLeft = at + 8 + g.measureText(text).width > box.x + box.width;
      g.textAlign = isLeft ? "right" : "left";
      clearText(g, text, isLeft ? at - 4 : at + 4, box.y + 2);
    }
    if (this.band) {
      g.fillStyle = `${ink("sel")}44`;
      g.fillRect(Math.min(...this.band), box.y, Math.abs(this.band[1] - this.band[0]), box.height);
    } else if (this.cross !== null) {
      g.strokeStyle = ink("faint");
      g.setLineDash([3, 3]);
      upright(g, box, Math.round(this.cross) + 0.5);
      g.setLineDash([]);
    }
  }

  destroy() {
    this.surface.destroy();
  }
}

// The life of a block, of which the ends are pixels: a bar above what is drawn, with its name.
export function paintLife(g, box, begin, end, text) {
  const [left, right] = [Math.max(begin, box.x), Math.min(end, box.x + box.width)];
  if (right < left) return;
  const y = box.y + LIFE_PX;
  g.fillStyle = `${ink("accent")}22`;
  g.fillRect(left, y, right - left, box.y + box.height - y);
  g.fillStyle = ink("accent");
  g.fillRect(left, y, Math.max(right - left, 2), 3);
  for (const at of [begin, end]) if (at >= left && at <= right) g.fillRect(at - 1, y - 3, 2, 9);
  const wide = g.measureText(text).width;
  const x = Math.max(box.x, Math.min(left + 4, box.x + box.width - wide - 4));
  g.textBaseline = "top";
  g.textAlign = "left";
  clearText(g, text, x, y + 6);
}

// Over a ground.
function clearText(g, text, x, y) {
  const { fillStyle } = g;
  const wide = g.measureText(text).width;
  g.fillStyle = ink("card");
  g.fillRect(g.textAlign === "right" ? x - wide : x, y, wide, 12);
  g.fillStyle = fillStyle;
  g.fillText(text, x, y);
}

function upright(g, box, at) {
  g.beginPath();
  g.moveTo(at, box.y);
  g.lineTo(at, box.y + box.height);
  g.stroke();
}

// The layers one upon the other: each with its upper edge; `top` is the edge of all.
function stacked({ times, layers }) {
  let below = new Float64Array(times.length);
  const edges = layers.map(({ name, colour, values }) => {
    const edge = Float64Array.from(below);
    for (let i = 0; i < edge.length; i += 1) edge[i] += values[i] ?? 0;
    below = edge;
    return { name, colour, edge };
  });
  return { times, edges, top: below };
}

// From the highest edge down, each area over the one before.
function paintAreas(g, { times, edges }, x, y, end) {
  if (!times.length) return;
  const place = Float64Array.from(times, x);
  const ground = y(0);
  for (let k = edges.length - 1; k >= 0; k -= 1) {
    const { colour, edge } = edges[k];
    g.fillStyle = colour;
    g.beginPath();
    g.moveTo(place[0], ground);
    for (let i = 0; i < edge.length; i += 1) {
      const at = y(edge[i]);
      g.lineTo(place[i], at);
      g.lineTo(i + 1 < edge.length ? place[i + 1] : Math.max(end, place[i]), at);
    }
    g.lineTo(Math.max(end, place[place.length - 1]), ground);
    g.fill();
  }
}

function paintLine(g, { times, values, lows, colour, dashed }, x, y, end) {
  g.strokeStyle = colour;
  g.setLineDash(dashed ? [5, 3] : []);
  g.beginPath();
  let drawing = false;
  for (let i = 0; i < times.length; i += 1) {
    if (values[i] === null) {
      drawing = false;
      continue;
    }
    const [at, top] = [x(times[i]), y(values[i])];
    if (drawing) g.lineTo(at, top);
    else g.moveTo(at, top);
    drawing = true;
    if (lows && lows[i] !== null && lows[i] < values[i]) {
      g.lineTo(at, y(lows[i]));
      g.lineTo(at, top);
    }
    g.lineTo(i + 1 < times.length ? x(times[i + 1]) : Math.max(end, at), top);
  }
  g.stroke();
}

// A tick for each event at the bottom, light within dark, so that it is seen on any area.
function paintTicks(g, { times, actions }, x, bottom) {
  for (const [colour, width] of [[ink("card"), 3], [ink("ink"), 1]]) {
    g.strokeStyle = colour;
    g.lineWidth = width;
    g.beginPath();
    for (let i = 0; i < times.length; i += 1) {
      if (actions[i] === null) continue;
      g.moveTo(x(times[i]), bottom);
      g.lineTo(x(times[i]), bottom - TICK_PX);
    }
    g.stroke();
  }
  g.lineWidth = 1;
}

function highestOf(values) {
  let highest = 0;
  for (const value of values) if (value !== null && value > highest) highest = value;
  return highest;
}
