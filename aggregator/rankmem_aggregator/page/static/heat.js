// Ranks over time: a line a rank, coloured by how high it stood. Cells arrive as numbers from 1 to 255; where ranks
// share a line of pixels, the highest is drawn.

import { boxOf, drawTimeAxis } from "./axes.js";
import { ramp } from "./colours.js";
import { timeGestures } from "./gestures.js";
import { Surface } from "./surface.js";
import { ink } from "./theme.js";

export class HeatMap {
  // range(), limits(): ns; hover(row, bin, x, y), leave(), pick(row, bin). `axis` draws what is below, `gestures`
  // are those of the pointer: of time, unless it is something else.
  constructor(parent, { height, label, range, limits, hover, leave, pick, axis = drawTimeAxis, gestures = timeGestures }) {
    this.rows = [];
    this.bins = 0;
    this.cells = new Uint8Array();
    this.chosen = -1;
    this.band = null;
    this.kind = "amount";
    this.range = range;
    this.axis = axis;
    this.surface = new Surface(parent, { height, label, paint: (g, width, high) => this.paint(g, width, high) });
    gestures(this.surface, {
      box: () => this.box,
      range,
      limits,
      hover: (x, y) => this.at(x, y, hover),
      leave,
      pick: (x, y) => this.at(x, y, pick),
      brush: (x0, x1) => {
        this.band = x0 === null ? null : [x0, x1];
        this.surface.draw();
      },
    });
  }

  // Shows a matrix: the label of each row, bins, cells row by row, "amount" or "difference".
  set({ rows, bins, cells, kind = "amount", from, to }) {
    Object.assign(this, { rows, bins, cells, kind, from, to });
    this.image = null;
    this.surface.draw();
  }

  choose(row) {
    this.chosen = row;
    this.surface.draw();
  }

  get box() {
    return boxOf(this.surface.width, this.surface.height);
  }

  at(x, y, tell) {
    const box = this.box;
    const row = Math.floor(((y - box.y) / box.height) * this.rows.length);
    const bin = Math.floor(((x - box.x) / box.width) * this.bins);
    if (row >= 0 && row < this.rows.length && bin >= 0 && bin < this.bins) tell?.(row, bin, x, y);
  }

  paint(g) {
    const box = this.box;
    if (!this.bins || !this.rows.length) return;
    this.image ??= this.pooled(Math.min(this.rows.length, Math.max(1, Math.floor(box.height))));
    g.imageSmoothingEnabled = false;
    g.drawImage(this.image, box.x, box.y, box.width, box.height);
    this.axis(g, box, this.from, this.to);
    this.paintRows(g, box);
    if (this.chosen >= 0) {
      const high = box.height / this.rows.length;
      g.strokeStyle = ink("ink");
      g.strokeRect(box.x - 2, box.y + this.chosen * high - 1, box.width + 4, Math.max(high, 2) + 2);
    }
    if (this.band) {
      g.fillStyle = `${ink("sel")}44`;
      g.fillRect(Math.min(...this.band), box.y, Math.abs(this.band[1] - this.band[0]), box.height);
    }
  }

  paintRows(g, box) {
    g.fillStyle = ink("faint");
    g.textAlign = "right";
    g.textBaseline = "middle";
    const step = Math.max(1, Math.ceil((this.rows.length * 16) / box.height));
    for (let row = 0; row < this.rows.length; row += step) {
      g.fillText(this.rows[row], box.x - 6, box.y + ((row + 0.5) / this.rows.length) * box.height);
    }
  }

  // An image of as many lines: of ranks that share a line, of each bin what stands furthest from the middle.
  pooled(lines) {
    const canvas = document.createElement("canvas");
    canvas.width = this.bins;
    canvas.height = lines;
    const g = canvas.getContext("2d");
    const image = g.createImageData(this.bins, lines);
    const colours = ramp(this.kind);
    const further = this.kind === "difference" ? (a, b) => Math.abs(a - 128) > Math.abs(b - 128) || b === 0 : (a, b) => a > b;
    for (let line = 0; line < lines; line += 1) {
      const begin = Math.floor((line * this.rows.length) / lines);
      const end = Math.floor(((line + 1) * this.rows.length) / lines);
      for (let bin = 0; bin < this.bins; bin += 1) {
        let best = 0;
        for (let row = begin; row < end; row += 1) {
          const cell = this.cells[row * this.bins + bin];
          if (cell && further(cell, best)) best = cell;
        }
        const place = (line * this.bins + bin) * 4;
        image.data.set(colours[best], place);
        image.data[place + 3] = 255;
      }
    }
    g.putImageData(image, 0, 0);
    return canvas;
  }

  destroy() {
    this.surface.destroy();
  }
}
