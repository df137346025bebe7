// The lives of blocks as rectangles: up is bytes, stacked by age or by address, to the right are events or time. The
// largest blocks come one by one, the others as a raster. Where a block is freed, those above it sink.

import { addressGestures, drawAddressAxis } from "./addresses.js";
import { boxOf, drawByteAxis, drawTimeAxis, lastAtOrBefore, line, timeTicks } from "./axes.js";
import { paintLife } from "./curve.js";
import { timeGestures } from "./gestures.js";
import { Surface } from "./surface.js";
import { ink } from "./theme.js";
import * as units from "./units.js";

const NEAR_PX = 4;
const BORDER_LEAST_PX = 3;

export class BlockMap {
  // range(), limits(): ns; hover(block or null, x, y) with the block's place in the answer; leave(); pick(block, x, y)
  constructor(parent, { height, label, range, limits, hover, leave, pick }) {
    this.rects = null;
    this.instant = null;
    this.life = null;
    this.marked = new Set();
    this.hovered = -1;
    this.band = null;
    this.bandUp = null;
    this.surface = new Surface(parent, { height, label, paint: (g) => this.paint(g) });
    const box = () => this.box;
    addressGestures(this.surface, {
      box,
      facts: () => this.facts,
      brush: (y0, y1) => {
        this.bandUp = y0 === null ? null : [y0, y1];
        this.surface.draw();
      },
    });
    timeGestures(this.surface, {
      box,
      range,
      limits,
      timeAt: (x) => this.timeAt(x),
      hover: (x, y) => {
        this.hovered = this.blockAt(x, y);
        this.surface.draw();
        hover(this.hovered < 0 ? null : this.hovered, x, y);
      },
      leave: () => {
        this.hovered = -1;
        this.surface.draw();
        leave();
      },
      pick: (x, y) => pick(this.blockAt(x, y), x, y),
      brush: (x0, x1) => {
        this.band = x0 === null ? null : [x0, x1];
        this.surface.draw();
      },
    });
  }

  // Shows an answer of /map; `colours` of its groups, `rasterColours` of those of its raster.
  set(answer, colours, rasterColours) {
    const { facts } = answer;
    this.facts = facts;
    this.colours = colours;
    this.rects = rectanglesOf(answer);
    this.group = answer.column("group");
    this.image = imageOf(facts, rasterColours);
    this.hovered = -1;
    this.surface.draw();
  }

  // Marks blocks by their place, and an instant by its position in the log (null: none).
  mark(blocks, seq) {
    this.marked = blocks;
    this.instant = seq;
    this.surface.draw();
  }

  // Marks the life of one block, as in CurvePlot.
  setLife(life) {
    this.life = life;
    this.surface.draw();
  }

  get box() {
    return boxOf(this.surface.width, this.surface.height, { left: this.facts?.kind === "address" ? 132 : 76 });
  }

  // The time at a pixel, ns since the session's start; between two known events in proportion.
  timeAt(x) {
    const { begin, length, axis, clock } = this.facts;
    const at = begin + ((x - this.box.x) / this.box.width) * length;
    return axis === "time" ? at : between(clock.seq, clock.time_ns, at);
  }

  // The pixel of a position of the log.
  xOfSeq(seq) {
    const { begin, length, axis, clock } = this.facts;
    const at = axis === "event" ? seq : between(clock.time_ns, clock.time_ns, between(clock.seq, clock.time_ns, seq));
    return this.box.x + ((at - begin) / length) * this.box.width;
  }

  // The pixel of a time.
  xOfTime(time) {
    const { begin, length, axis, clock } = this.facts;
    const at = axis === "time" ? time : between(clock.time_ns, clock.seq, time);
    return this.box.x + ((at - begin) / length) * this.box.width;
  }

  // The place of the block under a pixel, or of the nearest one close by; -1 for none.
  blockAt(px, py) {
    if (!this.rects) return -1;
    const { x0, x1, y0, size, owner } = this.rects;
    const box = this.box;
    const sx = box.width / this.facts.length;
    const sy = box.height / this.facts.height_bytes;
    let best = -1;
    let nearest = NEAR_PX;
    for (let i = 0; i < x0.length; i += 1) {
      const left = box.x + x0[i] * sx - px;
      const right = px - (box.x + x1[i] * sx);
      if (left > nearest || right > nearest) continue;
      const bottom = box.y + box.height - y0[i] * sy;
      const away = Math.max(left, right, py - bottom, bottom - size[i] * sy - py, 0);
      if (away < nearest || (away === 0 && best < 0)) {
        nearest = away;
        best = owner[i];
        if (!away) break;
      }
    }
    return best;
  }

  paint(g) {
    if (!this.rects) return;
    const box = this.box;
    const { facts } = this;
    if (facts.kind === "stacked") drawByteAxis(g, box, 0, facts.height_bytes);
    else drawAddressAxis(g, box, facts);
    if (facts.axis === "time") drawTimeAxis(g, box, facts.begin, facts.begin + facts.length);
    else drawEventAxis(g, box, facts.begin, facts.begin + facts.length);
    g.save();
    g.beginPath();
    g.rect(box.x, box.y, box.width, box.height);
    g.clip();
    if (this.image) {
      g.imageSmoothingEnabled = false;
      g.drawImage(this.image, box.x, box.y, box.width, box.height);
    }
    this.paintBlocks(g, box);
    if (this.life) {
      const { from, to, text } = this.life;
      paintLife(g, box, from === null ? box.x : this.xOfTime(from), to === null ? box.x + box.width : this.xOfTime(to), text);
    }
    if (this.instant !== null && this.instant >= facts.seq_first && this.instant <= facts.seq_last) {
      g.strokeStyle = ink("accent");
      const x = this.xOfSeq(this.instant + (facts.axis === "event" ? 0.5 : 0));
      line(g, x, box.y, x, box.y + box.height);
    }
    g.fillStyle = `${ink("sel")}44`;
    if (this.band) g.fillRect(Math.min(...this.band), box.y, Math.abs(this.band[1] - this.band[0]), box.height);
    if (this.bandUp) g.fillRect(box.x, Math.min(...this.bandUp), box.width, Math.abs(this.bandUp[1] - this.bandUp[0]));
    g.restore();
  }

  paintBlocks(g, box) {
    const { x0, x1, y0, size, owner } = this.rects;
    const sx = box.width / this.facts.length;
    const sy = box.height / this.facts.height_bytes;
    const outlined = [];
    // Stacked blocks touch: on whole pixels, or thin ones would shine through. At addresses they may stand alone.
    const scale = devicePixelRatio || 1;
    const edge = this.facts.kind === "stacked" ? (at) => Math.round(at * scale) / scale : (at) => at;
    let style = -1;
    for (let i = 0; i < x0.length; i += 1) {
      const group = this.group[owner[i]];
      if (group !== style) {
        style = group;
        g.fillStyle = this.colours[group];
      }
      const x = edge(box.x + x0[i] * sx);
      const y = edge(box.y + box.height - (y0[i] + size[i]) * sy);
      const wide = edge(box.x + x1[i] * sx) - x;
      const high = edge(box.y + box.height - y0[i] * sy) - y;
      // A hairline between neighbours of one colour.
      g.fillRect(x, y, wide > BORDER_LEAST_PX ? wide - 0.4 : wide, high > BORDER_LEAST_PX ? high - 0.6 : high);
      if (owner[i] === this.hovered || this.marked.has(owner[i])) outlined.push([x, y, wide, high, owner[i]]);
    }
    for (const [x, y, wide, high, block] of outlined) {
      g.strokeStyle = block === this.hovered ? ink("ink") : ink("accent");
      g.lineWidth = 1.5;
      g.strokeRect(x, y, Math.max(wide, 1), Math.max(high, 1));
    }
    g.lineWidth = 1;
  }

  destroy() {
    this.surface.destroy();
  }
}

// The rectangles of all blocks in flat arrays, with the place of the block each belongs to.
function rectanglesOf(answer) {
  const xs = answer.table.getChild("x");
  const ys = answer.table.getChild("y");
  const ends = answer.column("x_end");
  const sizes = answer.column("size_bytes");
  const [x0, x1, y0, size, owner] = [[], [], [], [], []];
  for (let block = 0; block < answer.length; block += 1) {
    const begins = xs.at(block);
    const below = ys.at(block);
    for (let piece = 0; piece < begins.length; piece += 1) {
      x0.push(begins[piece]);
      x1.push(piece + 1 < begins.length ? begins[piece + 1] : ends[block]);
      y0.push(below[piece]);
      size.push(sizes[block]);
      owner.push(block);
    }
  }
  return {
    x0: Float64Array.from(x0),
    x1: Float64Array.from(x1),
    y0: Float64Array.from(y0),
    size: Float64Array.from(size),
    owner: Int32Array.from(owner),
  };
}

// The raster as an image: a pixel's colour is that of the group with most of it, its opacity the share covered.
function imageOf({ width, height, raster, raster_group: groups }, colours) {
  if (!raster) return null;
  const shares = bytesOf(raster);
  const group = groups ? bytesOf(groups) : null;
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const g = canvas.getContext("2d");
  const image = g.createImageData(width, height);
  const rgb = colours.map((colour) => [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16)));
  for (let i = 0; i < shares.length; i += 1) {
    if (!shares[i]) continue;
    const [red, green, blue] = rgb[group ? group[i] : 0];
    image.data[4 * i] = red;
    image.data[4 * i + 1] = green;
    image.data[4 * i + 2] = blue;
    image.data[4 * i + 3] = shares[i];
  }
  g.putImageData(image, 0, 0);
  return canvas;
}

function bytesOf(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

// The value at `at` where it is known at ascending places.
export function between(places, values, at) {
  const i = Math.max(0, Math.min(places.length - 2, lastAtOrBefore(places, at)));
  const [from, to] = [places[i], places[i + 1] ?? places[i]];
  if (to <= from) return values[i];
  const part = Math.max(0, Math.min(1, (at - from) / (to - from)));
  return values[i] + part * (values[i + 1] - values[i]);
}

function drawEventAxis(g, box, from, to) {
  const { ticks } = timeTicks(from, to, Math.max(2, box.width / 80));
  g.fillStyle = ink("faint");
  g.strokeStyle = ink("line");
  g.textAlign = "center";
  g.textBaseline = "top";
  for (const at of ticks.filter(Number.isInteger)) {
    const x = box.x + ((at - from) / (to - from)) * box.width;
    line(g, x, box.y + box.height, x, box.y + box.height + 4);
    const text = units.count(at);
    const half = g.measureText(text).width / 2;
    g.fillText(text, Math.min(Math.max(x, box.x + half), box.x + box.width - half), box.y + box.height + 5);
  }
}
