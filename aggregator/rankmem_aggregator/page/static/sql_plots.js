// Rows of any statement as a picture: lines over a number, or a heat map of two columns and a number.

import { boxOf, drawByteAxis, line } from "./axes.js";
import { coloursOf, ramp } from "./colours.js";
import { Surface } from "./surface.js";
import { ink } from "./theme.js";
import * as units from "./units.js";

const LINES_MAX = 12;
const CELLS_MAX = 4096;

// A number of a column as its name says: bytes, times, or plain.
function valueText(name, value) {
  if (value === null || value === undefined) return units.NOTHING;
  if (typeof value !== "number") return String(value);
  if (/(^|_)bytes$/.test(name)) return units.bytes(value);
  if (/(^|_)ns$/.test(name)) return units.duration(value);
  return Number.isInteger(value) ? units.count(value) : String(Math.round(value * 1e6) / 1e6);
}

function textOf(value) {
  return value === null ? "NULL" : String(value);
}

// The lines of an answer: over its first number; one for each further number, or for each text of its one text column.
// A text says why there are none.
export function linesOf(names, given) {
  const columns = given.map(numbersOf);
  const numeric = names.filter((_, i) => isNumeric(columns[i]));
  const texts = names.filter((_, i) => !isNumeric(columns[i]));
  if (numeric.length < 2) return "A curve needs two columns of numbers: what it is drawn over, and the heights.";
  const of = (name) => columns[names.indexOf(name)];
  const [x, ...heights] = numeric;
  const groups = texts.length === 1 && heights.length === 1 ? [...new Set(of(texts[0]))].slice(0, LINES_MAX) : null;
  const points = (keep, height) => {
    const found = [];
    for (let i = 0; i < of(x).length; i += 1) {
      if (keep(i) && of(x)[i] !== null && of(height)[i] !== null) found.push([of(x)[i], of(height)[i]]);
    }
    return found.sort((a, b) => a[0] - b[0]);
  };
  const lines = groups
    ? groups.map((group) => ({ name: String(group ?? units.NOTHING), points: points((i) => of(texts[0])[i] === group, heights[0]) }))
    : heights.slice(0, LINES_MAX).map((name) => ({ name, points: points(() => true, name) }));
  return { x, unit: heights[0], lines };
}

// The cells of an answer: rows by its first column, columns by its second, coloured by its third.
export function cellsOf(names, columns) {
  if (names.length < 3 || !isNumeric(columns[2])) {
    return "A heat map needs three columns: what a row is, what a column is, and a number.";
  }
  const order = (values) => [...new Set(values)].sort((a, b) => (a === b ? 0 : a === null ? -1 : b === null ? 1 : a < b ? -1 : 1));
  const [rows, across] = [order(columns[0]), order(columns[1])];
  if (rows.length > CELLS_MAX || across.length > CELLS_MAX) return `A heat map has at most ${units.count(CELLS_MAX)} rows and columns.`;
  const cells = new Float64Array(rows.length * across.length).fill(NaN);
  const places = [new Map(rows.map((each, i) => [each, i])), new Map(across.map((each, i) => [each, i]))];
  for (let i = 0; i < columns[0].length; i += 1) {
    const value = columns[2][i];
    if (value !== null) cells[places[0].get(columns[0][i]) * across.length + places[1].get(columns[1][i])] = value;
  }
  return { rows, across, cells, names };
}

// Whole numbers that came as texts, being too large for numbers, as their distance from the lowest.
function numbersOf(column) {
  if (ArrayBuffer.isView(column) || !column.length || !column.every((value) => value === null || (typeof value === "string" && /^-?\d{1,19}$/.test(value)))) return column;
  const exact = column.map((value) => (value === null ? null : BigInt(value)));
  const lowest = exact.reduce((low, value) => (value !== null && (low === null || value < low) ? value : low), null);
  return exact.map((value) => (value === null ? null : Number(value - lowest)));
}

function isNumeric(column) {
  return ArrayBuffer.isView(column) || (column.some((value) => value !== null) && column.every((value) => value === null || typeof value === "number"));
}

function bounds(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 1];
}

export class SqlPlot {
  constructor(parent) {
    this.shown = null;
    this.surface = new Surface(parent, { height: 320, label: "the rows as a picture", paint: (g) => this.paint(g) });
  }

  set(shown) {
    this.shown = shown;
    this.surface.canvas.hidden = !shown;
    this.surface.draw();
  }

  paint(g) {
    if (this.shown?.lines) this.paintLines(g);
    else if (this.shown?.cells) this.paintCells(g);
  }

  paintLines(g) {
    const { x: over, unit, lines } = this.shown;
    const box = boxOf(this.surface.width, this.surface.height, { left: 88, bottom: 36 });
    const [from, to] = bounds(lines.flatMap((each) => each.points.map((point) => point[0])));
    const [least, high] = bounds(lines.flatMap((each) => each.points.map((point) => point[1])));
    const low = Math.min(0, least);
    const top = high + 0.04 * (high - low);
    drawByteAxis(g, box, low, top, (value) => valueText(unit, value));
    this.paintEnds(g, box, [valueText(over, from), over, valueText(over, to)]);
    const colours = coloursOf(lines.map((each) => each.name));
    lines.forEach(({ points }, i) => {
      g.strokeStyle = colours[i];
      g.beginPath();
      points.forEach(([at, value], k) => {
        const px = box.x + ((at - from) / Math.max(to - from, 1e-9)) * box.width;
        const py = box.y + box.height - ((value - low) / Math.max(top - low, 1e-9)) * box.height;
        if (k) g.lineTo(px, py);
        else g.moveTo(px, py);
      });
      g.stroke();
    });
  }

  paintCells(g) {
    const { rows, across, cells, names } = this.shown;
    const box = boxOf(this.surface.width, this.surface.height, { left: 120, bottom: 36 });
    const [low, high] = bounds(cells.filter((value) => !Number.isNaN(value)));
    const colours = ramp("amount");
    const [wide, tall] = [box.width / across.length, box.height / rows.length];
    for (let i = 0; i < cells.length; i += 1) {
      if (Number.isNaN(cells[i])) continue;
      const [r, green, b] = colours[1 + Math.floor(((cells[i] - low) / Math.max(high - low, 1e-9)) * 254)];
      g.fillStyle = `rgb(${r},${green},${b})`;
      const [column, row] = [i % across.length, Math.floor(i / across.length)];
      const [x, y] = [Math.floor(box.x + column * wide), Math.floor(box.y + row * tall)];
      g.fillRect(x, y, Math.floor(box.x + (column + 1) * wide) - x, Math.floor(box.y + (row + 1) * tall) - y);
    }
    this.paintEnds(g, box, [textOf(across[0]), `${names[1]}; ${names[2]} from ${valueText(names[2], low)} (dark) to ${valueText(names[2], high)} (bright)`, textOf(across[across.length - 1])]);
    g.textAlign = "right";
    g.textBaseline = "middle";
    const step = Math.max(1, Math.ceil((rows.length * 14) / box.height));
    for (let row = 0; row < rows.length; row += step) g.fillText(textOf(rows[row]).slice(0, 18), box.x - 6, box.y + (row + 0.5) * tall);
  }

  paintEnds(g, box, [first, middle, last]) {
    g.fillStyle = ink("faint");
    g.strokeStyle = ink("line");
    line(g, box.x, box.y + box.height, box.x + box.width, box.y + box.height);
    g.textBaseline = "top";
    const y = box.y + box.height + 6;
    g.textAlign = "left";
    g.fillText(first.slice(0, 24), box.x, y);
    g.textAlign = "right";
    g.fillText(last.slice(0, 24), box.x + box.width, y);
    g.textAlign = "center";
    g.fillText(middle.slice(0, 120), box.x + box.width / 2, y + 14);
  }

  destroy() {
    this.surface.destroy();
  }
}
