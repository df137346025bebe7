// Curves of bytes over time, as steps: each value holds until the next point. One line or several, stacked or not.

import { boxOf, drawByteAxis, drawTimeAxis } from "./axes.js";
import { timeGestures } from "./gestures.js";
import { Surface } from "./surface.js";
import { ink } from "./theme.js";

export class CurvePlot {
  constructor(parent, { height, label, range, limits, hover, leave, pick }) {
    this.lines = [];
    this.marks = [];
    this.band = null;
    this.range = range;
    this.surface = new Surface(parent, { height, label, paint: (g) => this.paint(g) });
    timeGestures(this.surface, {
      box: () => this.box,
      range,
      limits,
      hover: (x, y) => hover?.(this.timeAt(x), x, y),
      leave,
      pick: (x, y) => pick?.(this.timeAt(x), x, y),
      brush: (x0, x1) => {
        this.band = x0 === null ? null : [x0, x1];
        this.surface.draw();
      },
    });
  }

  // Shows lines: [{name, colour, times, values}], times ascending in ns.
  set({ lines, from, to }) {
    Object.assign(this, { lines, from, to });
    this.highest = Math.max(1, ...lines.map((line) => line.values.reduce((a, b) => (b > a ? b : a), 0)));
    this.surface.draw();
  }

  // Vertical marks: [{time, colour, text}].
  setMarks(marks) {
    this.marks = marks;
    this.surface.draw();
  }

  get box() {
    return boxOf(this.surface.width, this.surface.height);
  }

  timeAt(x) {
    const box = this.box;
    return this.from + ((x - box.x) / box.width) * (this.to - this.from);
  }

  paint(g) {
    const box = this.box;
    drawByteAxis(g, box, 0, this.highest * 1.04);
    drawTimeAxis(g, box, this.from, this.to);
    const x = (time) => box.x + ((time - this.from) / (this.to - this.from)) * box.width;
    const y = (value) => box.y + box.height - (value / (this.highest * 1.04)) * box.height;
    g.save();
    g.beginPath();
    g.rect(box.x, box.y, box.width, box.height);
    g.clip();
    for (const { times, values, colour } of this.lines) {
      g.strokeStyle = colour;
      g.beginPath();
      for (let i = 0; i < times.length; i += 1) {
        if (i) g.lineTo(x(times[i]), y(values[i - 1]));
        g.lineTo(x(times[i]), y(values[i]));
      }
      if (times.length) g.lineTo(x(this.to), y(values[values.length - 1]));
      g.stroke();
    }
    for (const { time, colour } of this.marks) {
      g.strokeStyle = colour ?? ink("accent");
      g.beginPath();
      g.moveTo(x(time), box.y);
      g.lineTo(x(time), box.y + box.height);
      g.stroke();
    }
    if (this.band) {
      g.fillStyle = `${ink("sel")}44`;
      g.fillRect(Math.min(...this.band), box.y, Math.abs(this.band[1] - this.band[0]), box.height);
    }
    g.restore();
  }

  destroy() {
    this.surface.destroy();
  }
}
