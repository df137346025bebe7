// Stacked horizontal bars: a line a row, its name to the left, its parts side by side, a text behind them. A row may
// have a mark (a figure to compare with) and a range (low to high, drawn as a whisker). The arrow keys go from row to
// row, Enter picks. Of many rows a page is shown at a time, all in one scale.

import { line } from "./axes.js";
import { announce, el } from "./dom.js";
import { drawPager } from "./pager.js";
import { Surface } from "./surface.js";
import { ink } from "./theme.js";
import * as units from "./units.js";

const ROW = 22;
const BAR = 14;
const NAME_MOST = 0.38;
const HEAD = 16;
const PAGE = 40;

export class Bars {
  // hover(row, part, x, y), where part is null beside the parts; leave(); pick(row, part); page: rows of one; of: what
  // they are
  constructor(parent, { label, hover, leave, pick, page = PAGE, of = "bars" }) {
    Object.assign(this, { all: [], rows: [], first: 0, page, of });
    this.limit = null;
    this.only = null;
    this.current = -1;
    this.pick = pick;
    this.surface = new Surface(parent, { height: ROW, label, paint: (g, width) => this.paint(g, width) });
    this.pager = el("div", { class: "bar pager", hidden: true });
    parent.append(this.pager);
    const { canvas } = this.surface;
    const at = (event) => {
      const place = canvas.getBoundingClientRect();
      return [event.clientX - place.left, event.clientY - place.top];
    };
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = at(event);
      const found = this.at(x, y);
      canvas.style.cursor = found && pick ? "pointer" : "";
      if (found) hover?.(found.row, found.part, x, y);
      else leave?.();
    });
    canvas.addEventListener("pointerleave", () => leave?.());
    canvas.addEventListener("click", (event) => {
      const found = this.at(...at(event));
      if (found) pick?.(found.row, found.part);
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.go(-1));
  }

  // Shows rows of {name, parts: [{name, value, colour}], note, mark, low, high}; values may be negative where a row has
  // one part. `limit` is a line {value, text} across all rows; `only`, the names (a set) of the parts
  // that are not faded, where some row has one.
  set({ rows, limit = null, only = null }) {
    const has = only !== null && rows.some((row) => row.parts.some((part) => only.has(part.name)));
    const same = rows.length === this.all.length;
    const extent = { low: 0, high: Math.max(0, limit?.value ?? 0) };
    for (const row of rows) {
      for (const value of [total(row), row.mark ?? 0, row.low ?? 0, row.high ?? 0]) {
        extent.low = Math.min(extent.low, value);
        extent.high = Math.max(extent.high, value);
      }
    }
    Object.assign(this, { all: rows, limit, extent, only: has ? only : null });
    this.turnTo(same ? this.first : 0);
  }

  // Shows the page that begins with this row.
  turnTo(first) {
    const rows = this.all.slice(first, first + this.page);
    Object.assign(this, { first, rows, current: -1 });
    this.surface.setHeight(Math.max(1, rows.length) * ROW + (this.limit ? HEAD : 0));
    this.pager.hidden = this.all.length <= this.page;
    const turn = (to, isThere) => (isThere ? () => this.turnTo(to) : null);
    drawPager(this.pager, {
      first: turn(0, first > 0),
      before: turn(first - this.page, first > 0),
      next: turn(first + this.page, first + this.page < this.all.length),
      from: first + 1,
      to: first + rows.length,
      total: this.all.length,
      of: this.of,
    });
  }

  get top() {
    return this.limit ? HEAD : 0;
  }

  at(x, y) {
    const row = this.rows[Math.floor((y - this.top) / ROW)];
    if (!row || y < this.top) return null;
    const value = this.scale ? this.scale.low + (x - this.scale.x) / this.scale.factor : -1;
    let begin = 0;
    for (const part of row.parts) {
      const end = begin + part.value;
      if (value >= Math.min(begin, end) && value < Math.max(begin, end)) return { row, part };
      begin = end;
    }
    return { row, part: null };
  }

  key(event) {
    const moves = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in moves) {
      this.step(moves[event.key]);
      const row = this.rows[this.current];
      if (row) announce(`${row.name}: ${row.note ?? units.bytes(total(row))}`);
    } else if (event.key === "Enter" && this.rows[this.current]) {
      this.pick?.(this.rows[this.current], null);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  // To the row after or before, also on the next page or the one before.
  step(by) {
    const at = this.first + Math.max(this.current, by < 0 ? 0 : -1) + by;
    const to = Math.min(this.all.length - 1, Math.max(0, at));
    const first = to - (to % this.page);
    if (first !== this.first) this.turnTo(first);
    this.go(to - first);
  }

  go(current) {
    this.current = current;
    this.surface.draw();
  }

  paint(g, width) {
    if (!this.rows.length) return;
    const names = Math.min(width * NAME_MOST, 12 + Math.max(...this.rows.map((row) => g.measureText(row.name).width)));
    const notes = Math.min(width * 0.45, 12 + Math.max(0, ...this.rows.map((row) => g.measureText(row.note ?? "").width)));
    const { low, high } = this.extent;
    const factor = Math.max(1, width - names - notes - 4) / Math.max(high - low, 1);
    this.scale = { x: names, low, factor };
    const place = (value) => names + (value - low) * factor;
    this.rows.forEach((row, i) => this.paintRow(g, row, this.top + i * ROW, place, names, width, i === this.current));
    if (low < 0) {
      g.strokeStyle = ink("faint");
      line(g, place(0), this.top, place(0), this.top + this.rows.length * ROW);
    }
    if (this.limit) this.paintLimit(g, place(this.limit.value), width);
  }

  paintRow(g, row, y, place, names, width, current) {
    const middle = y + ROW / 2;
    if (current) {
      g.fillStyle = ink("hover");
      g.fillRect(0, y, width, ROW);
    }
    g.textBaseline = "middle";
    g.textAlign = "right";
    g.fillStyle = ink("ink");
    g.fillText(clipped(g, row.name, names - 10), names - 8, middle);
    let begin = 0;
    for (const part of row.parts) {
      const [from, to] = [place(Math.min(begin, begin + part.value)), place(Math.max(begin, begin + part.value))];
      g.globalAlpha = this.only !== null && !this.only.has(part.name) ? 0.25 : 1;
      g.fillStyle = part.colour;
      g.fillRect(from, y + (ROW - BAR) / 2, Math.max(to - from, part.value ? 0.5 : 0), BAR);
      begin += part.value;
    }
    g.globalAlpha = 1;
    g.strokeStyle = ink("ink");
    if (row.mark !== undefined && row.mark !== null) line(g, place(row.mark), y + 2, place(row.mark), y + ROW - 3);
    if (row.low !== undefined && row.low !== null) {
      line(g, place(row.low), middle, place(row.high), middle);
      for (const end of [row.low, row.high]) line(g, place(end), middle - 3, place(end), middle + 3);
    }
    const after = Math.max(...[total(row), row.mark ?? 0, row.high ?? 0, this.limit?.value ?? 0].map(place)) + 8;
    g.textAlign = "left";
    g.fillStyle = row.warns ? ink("bad") : ink("ink");
    g.fillText(clipped(g, row.note ?? "", width - after), after, middle);
  }

  paintLimit(g, x, width) {
    g.strokeStyle = ink("bad");
    line(g, x, HEAD - 2, x, this.top + this.rows.length * ROW);
    g.fillStyle = ink("bad");
    g.textBaseline = "top";
    const half = g.measureText(this.limit.text).width / 2;
    g.textAlign = "center";
    g.fillText(this.limit.text, Math.min(Math.max(x, half), width - half), 0);
  }

  destroy() {
    this.surface.destroy();
    this.pager.remove();
  }
}

// All parts of a row together.
export function total(row) {
  return row.parts.reduce((sum, part) => sum + part.value, 0);
}

// A text as it fits, cut on the left where it is a path: its end says more.
function clipped(g, text, width) {
  if (g.measureText(text).width <= width) return text;
  const fromLeft = text.includes("/") || text.includes(".py");
  let [fits, not] = [0, text.length];
  const cut = (length) => (fromLeft ? `…${text.slice(text.length - length)}` : `${text.slice(0, length)}…`);
  while (not - fits > 1) {
    const length = (fits + not) >> 1;
    if (g.measureText(cut(length)).width <= width) fits = length;
    else not = length;
  }
  return fits ? cut(fits) : "";
}
