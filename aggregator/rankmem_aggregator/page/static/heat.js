// Ranks over time: a line for each row, coloured by how high it stood. Cells arrive as numbers from 1 to 255;
// where rows share a line of pixels, what matters most is drawn.

import { boxOf, drawTimeAxis, line } from "./axes.js";
import { ramp } from "./colours.js";
import { timeGestures } from "./gestures.js";
import { hatchBox } from "./hatching.js";
import * as marks from "./marks.js";
import { Surface } from "./surface.js";
import { ink } from "./theme.js";
import * as units from "./units.js";

const LABEL_PX = 15;
const GROUP_PX = 12; // groups that are lower than this have no line between them: it would cover ranks
const MIDDLE = 128;
const BLACK = 255 << 24;

// The colours of cells: of "headroom" the least is the brightest.
export function coloursOfCells(kind) {
  const colours = ramp(kind === "difference" ? "difference" : "amount");
  return kind === "headroom" ? [colours[0], ...colours.slice(1).reverse()] : colours;
}

export class HeatMap {
  // range(), limits(): ns; hover(row, bin, x, y), leave(), pick(row, bin), step(by): arrow up and down. `axis` draws what
  // is below, `gestures` are those of the pointer: of time, unless it is something else.
  constructor(parent, { height, label, range, limits, hover, leave, pick, step, axis = drawTimeAxis, gestures = timeGestures }) {
    Object.assign(this, { rows: [], bins: 0, cells: new Uint8Array(), chosen: -1, band: null, kind: "amount", steps: [], axis });
    this.surface = new Surface(parent, { height, label, paint: (g) => this.paint(g) });
    this.surface.canvas.addEventListener("keydown", (event) => {
      const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      step?.(by);
    });
    gestures(this.surface, {
      box: () => this.box,
      range,
      limits,
      hover: (x, y) => this.at(x, y, hover) || leave?.(),
      leave,
      pick: (x, y) => this.at(x, y, pick),
      brush: (x0, x1) => {
        this.band = x0 === null ? null : [x0, x1];
        this.surface.draw();
      },
    });
  }

  // Shows a matrix: rows [{label, group, restarts, gaps, above}] or labels alone, bins, cells row by row, kind "amount", "difference"
  // or "headroom", steps [[number, time]].
  set({ rows, bins, cells, kind = "amount", steps = [], from, to }) {
    const labelled = rows.map((row) => (typeof row === "string" ? { label: row } : row));
    Object.assign(this, { rows: labelled, bins, cells, kind, steps, from, to });
    this.surface.draw();
  }

  choose(row) {
    this.chosen = row;
    this.surface.draw();
  }

  get box() {
    return boxOf(this.surface.width, this.surface.height, { top: this.steps.length ? 16 : 6 });
  }

  // Calls tell(row, bin, x, y) if there is a cell; true if there is.
  at(x, y, tell) {
    const box = this.box;
    const row = Math.floor(((y - box.y) / box.height) * this.rows.length);
    const bin = Math.floor(((x - box.x) / box.width) * this.bins);
    if (!(row >= 0 && row < this.rows.length && bin >= 0 && bin < this.bins)) return false;
    tell?.(row, bin, x, y);
    return true;
  }

  paint(g) {
    const box = this.box;
    if (!this.bins || !this.rows.length) return;
    const lines = Math.min(this.rows.length, Math.max(1, Math.floor(box.height)));
    const colours = coloursOfCells(this.kind);
    g.imageSmoothingEnabled = false;
    g.drawImage(this.image(lines, colours.map(pixelOf)), box.x, box.y, box.width, box.height);
    if (this.rows.some((row) => row.above)) this.paintAbove(g, box, lines);
    this.paintGaps(g, box);
    this.axis(g, box, this.from, this.to);
    this.paintSteps(g, box);
    this.paintLabels(g, box);
    if (this.axis === drawTimeAxis) marks.draw(g, box, this.from, this.to);
    if (this.chosen >= 0) {
      const high = box.height / this.rows.length;
      this.paintChosen(g, box, box.y + this.chosen * high, high);
    }
    if (this.band) {
      g.fillStyle = `${ink("sel")}44`;
      g.fillRect(Math.min(...this.band), box.y, Math.abs(this.band[1] - this.band[0]), box.height);
    }
  }

  // The chosen row: framed, or where it is thin pointed at from both sides, so that it is not covered.
  paintChosen(g, box, y, high) {
    g.strokeStyle = g.fillStyle = ink("ink");
    if (high >= 8) {
      g.strokeRect(box.x - 1.5, Math.round(y) - 0.5, box.width + 3, Math.round(high) + 1);
      return;
    }
    const middle = y + high / 2;
    for (const [tip, back] of [[box.x, -6], [box.x + box.width, 6]]) {
      g.beginPath();
      g.moveTo(tip, middle);
      g.lineTo(tip + back, middle - 4);
      g.lineTo(tip + back, middle + 4);
      g.fill();
    }
  }

  // Cells above the limit, hatched.
  paintAbove(g, box, lines) {
    const layer = document.createElement("canvas");
    const scale = devicePixelRatio || 1;
    layer.width = Math.max(1, Math.round(box.width * scale));
    layer.height = Math.max(1, Math.round(box.height * scale));
    const on = layer.getContext("2d");
    on.imageSmoothingEnabled = false;
    on.drawImage(this.image(lines, null), 0, 0, layer.width, layer.height);
    on.globalCompositeOperation = "source-in";
    on.fillStyle = hatch(on, ink("bad"), Math.round(6 * scale));
    on.fillRect(0, 0, layer.width, layer.height);
    g.drawImage(layer, box.x, box.y, box.width, box.height);
  }

  // Gaps as hatched stretches, restarts as notches.
  paintGaps(g, box) {
    const high = box.height / this.rows.length;
    const x = (bin) => box.x + (bin / this.bins) * box.width;
    g.strokeStyle = ink("ink");
    this.rows.forEach(({ gaps = [] }, row) => {
      for (let i = 0; i < gaps.length; i += 2) {
        const width = Math.max(4, x(gaps[i + 1] + 1) - x(gaps[i]));
        hatchBox(g, { x: x(gaps[i]), y: box.y + row * high, width, height: Math.max(high, 3) }, 5);
      }
    });
    g.fillStyle = ink("accent");
    this.rows.forEach(({ restarts = [] }, row) => {
      for (const bin of restarts) {
        const tall = Math.max(high, 5);
        const y = box.y + row * high + (high - tall) / 2;
        g.beginPath();
        g.moveTo(x(bin) - 4, y);
        g.lineTo(x(bin) + 4, y);
        g.lineTo(x(bin), y + Math.min(tall, 7));
        g.fill();
        g.fillRect(x(bin) - 0.5, y, 1, tall);
      }
    });
  }

  paintSteps(g, box) {
    g.strokeStyle = ink("line");
    g.fillStyle = ink("faint");
    g.textAlign = "right";
    g.textBaseline = "bottom";
    let free = box.x;
    for (const [step, time] of this.steps) {
      const x = box.x + ((time - this.from) / (this.to - this.from)) * box.width;
      const text = free === box.x ? `step ${units.count(step)}` : units.count(step);
      const fits = x - g.measureText(text).width - 6 > free;
      line(g, x, box.y - (fits ? 13 : 3), x, box.y - 1);
      if (fits) g.fillText(text, x - 3, box.y - 2);
      if (fits) free = x + 12;
    }
  }

  // The ranks' labels; where rows are in groups, each group's once, with a line between groups.
  paintLabels(g, box) {
    const high = box.height / this.rows.length;
    g.fillStyle = ink("faint");
    g.strokeStyle = ink("bg");
    g.textAlign = "right";
    g.textBaseline = "middle";
    const write = (text, y) => g.fillText(shortened(g, text, box.x - 14), box.x - 9, y);
    if (this.rows.some((row) => row.group !== null && row.group !== undefined)) {
      let next = box.y;
      const groups = new Set(this.rows.map((row) => row.group)).size;
      const apart = box.height / groups >= GROUP_PX;
      for (let row = 0; row < this.rows.length; row += 1) {
        if (row && this.rows[row].group === this.rows[row - 1].group) continue;
        const y = box.y + row * high;
        if (row && apart) line(g, box.x, y, box.x + box.width, y);
        if (y < next) continue;
        write(this.rows[row].group ?? "none", Math.max(y + Math.min(high, LABEL_PX) / 2, box.y + 5));
        next = Math.max(y, box.y + 5) + LABEL_PX;
      }
      return;
    }
    const every = Math.max(1, Math.ceil((this.rows.length * LABEL_PX) / box.height));
    for (let row = 0; row < this.rows.length; row += every) write(this.rows[row].label, box.y + (row + 0.5) * high);
  }

  // An image of as many lines, in these pixels by cell (null: black where a cell is above the limit, else nothing); of
  // rows that share a line, of each bin the cell that matters most.
  image(lines, pixels) {
    const canvas = document.createElement("canvas");
    canvas.width = this.bins;
    canvas.height = lines;
    const g = canvas.getContext("2d");
    const image = g.createImageData(this.bins, lines);
    const painted = new Uint32Array(image.data.buffer);
    const weight = { difference: (cell) => Math.abs(cell - MIDDLE), headroom: (cell) => 256 - cell }[this.kind] ?? ((cell) => cell);
    for (let at = 0; at < lines; at += 1) {
      const begin = Math.floor((at * this.rows.length) / lines);
      const end = Math.floor(((at + 1) * this.rows.length) / lines);
      for (let bin = 0; bin < this.bins; bin += 1) {
        let best = 0;
        let over = false;
        for (let row = begin; row < end; row += 1) {
          const cell = this.cells[row * this.bins + bin];
          if (cell && (!best || weight(cell) > weight(best))) best = cell;
          const { above } = this.rows[row];
          over ||= Boolean(above) && ((above[bin >> 3] >> (bin & 7)) & 1) === 1;
        }
        painted[at * this.bins + bin] = pixels === null ? (over ? BLACK : 0) : pixels[best];
      }
    }
    g.putImageData(image, 0, 0);
    return canvas;
  }

  destroy() {
    this.surface.destroy();
  }
}

// A pixel of an image in the order of its bytes, in memory from the lowest on: red, green, blue, opacity.
function pixelOf([red, green, blue]) {
  return (255 << 24) | (blue << 16) | (green << 8) | red;
}

// A fill of thin diagonal lines, `apart` pixels from one another.
function hatch(g, colour, apart) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = apart;
  const on = tile.getContext("2d");
  on.strokeStyle = colour;
  on.lineWidth = 1.2;
  on.beginPath();
  for (const shift of [-apart, 0, apart]) {
    on.moveTo(shift - 1, apart + 1);
    on.lineTo(shift + apart + 1, -1);
  }
  on.stroke();
  return g.createPattern(tile, "repeat");
}

// A text's end, where all of it is wider than `most` pixels.
function shortened(g, text, most) {
  if (g.measureText(text).width <= most) return text;
  let kept = text;
  while (kept.length > 1 && g.measureText(`…${kept}`).width > most) kept = kept.slice(1);
  const word = kept.search(/[-_.][^-_.]/);
  return word >= 0 ? kept.slice(word + 1) : `…${kept}`;
}
