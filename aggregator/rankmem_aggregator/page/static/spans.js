// Steps and annotations over time, in a strip above a curve: a line for steps, one for each depth of annotations.

import { boxOf } from "./axes.js";
import { colourOf } from "./colours.js";
import { setRange, timeGestures } from "./gestures.js";
import { Surface } from "./surface.js";
import { ink } from "./theme.js";

const LINE_PX = 15;
const DEPTHS_MAX = 4;
const LABEL_LEAST_PX = 24;
const LETTERS_LEAST = 3;

export class SpanStrip {
  // range(), limits(): ns; hover(span, x, y), leave()
  constructor(parent, { range, limits, hover, leave }) {
    Object.assign(this, { spans: [], lines: 0, from: 0, to: 1 });
    this.surface = new Surface(parent, { height: LINE_PX, label: "training steps and annotations over time", paint: (g) => this.paint(g) });
    timeGestures(this.surface, {
      box: () => this.box,
      range,
      limits,
      hover: (x, y) => {
        const span = this.at(x, y);
        if (span) hover(span, x, y);
        else leave();
      },
      leave,
      pick: (x, y) => {
        const span = this.at(x, y);
        if (span) setRange(span.begin, span.end, limits());
      },
    });
  }

  // Shows spans: [{kind, name, depth, begin, end}]; annotations deeper than there is room for are left out.
  set({ spans, from, to }) {
    const hasSteps = spans.some((span) => span.kind === "step");
    this.spans = spans
      .map((span) => ({ ...span, line: span.kind === "step" ? 0 : span.depth + (hasSteps ? 1 : 0) }))
      .filter((span) => span.kind === "step" || span.depth < DEPTHS_MAX);
    this.lines = this.spans.reduce((most, span) => Math.max(most, span.line + 1), 0);
    Object.assign(this, { from, to });
    this.surface.canvas.hidden = !this.lines;
    this.surface.setHeight(Math.max(1, this.lines) * LINE_PX);
  }

  get box() {
    return boxOf(this.surface.width, this.surface.height, { top: 0, bottom: 0 });
  }

  x(time) {
    return this.box.x + ((time - this.from) / (this.to - this.from)) * this.box.width;
  }

  at(x, y) {
    const line = Math.floor(y / LINE_PX);
    const inside = this.spans.filter((span) => span.line === line && this.x(span.begin) <= x && this.x(span.end) >= x);
    return inside.at(-1) ?? null;
  }

  paint(g) {
    const box = this.box;
    g.textBaseline = "middle";
    g.fillStyle = ink("faint");
    g.textAlign = "right";
    if (this.spans.some((span) => span.kind === "step")) g.fillText("step", box.x - 6, LINE_PX / 2);
    g.save();
    g.beginPath();
    g.rect(box.x, 0, box.width, this.surface.height);
    g.clip();
    g.textAlign = "left";
    const numbers = [];
    for (const { kind, name, line, begin, end } of this.spans) {
      const left = Math.max(this.x(begin), box.x);
      const right = Math.min(this.x(end), box.x + box.width);
      const top = line * LINE_PX;
      if (kind === "step") {
        g.strokeStyle = ink("line");
        g.strokeRect(Math.round(left) + 0.5, top + 0.5, Math.max(1, right - left), LINE_PX - 2);
      } else {
        g.fillStyle = `${colourOf(name)}66`;
        g.fillRect(left, top + 1, Math.max(1, right - left - 1), LINE_PX - 3);
      }
      if (kind === "step") numbers.push({ name, left });
      else if (right - left >= LABEL_LEAST_PX) {
        g.fillStyle = ink("ink");
        g.fillText(shortened(g, name, right - left - 6), left + 3, top + LINE_PX / 2);
      }
    }
    this.paintNumbers(g, numbers);
    g.restore();
  }

  // The numbers of steps, as many as there is room for.
  paintNumbers(g, numbers) {
    let free = -Infinity;
    for (const { name, left } of numbers) {
      if (left < free) continue;
      const { width } = g.measureText(name);
      g.fillStyle = ink("card");
      g.fillRect(Math.round(left) + 1, 1, width + 4, LINE_PX - 3);
      g.fillStyle = ink("ink");
      g.fillText(name, left + 3, LINE_PX / 2);
      free = left + width + 12;
    }
  }

  destroy() {
    this.surface.destroy();
  }
}

// The beginning of a text for which there is room.
function shortened(g, text, room) {
  if (g.measureText(text).width <= room) return text;
  let length = Math.max(0, Math.floor((text.length * room) / g.measureText(text).width) - 1);
  while (length > 0 && g.measureText(`${text.slice(0, length)}…`).width > room) length -= 1;
  return length >= LETTERS_LEAST ? `${text.slice(0, length)}…` : "";
}
