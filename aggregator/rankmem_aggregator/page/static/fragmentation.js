// How an allocator's memory is used over time: reserved, in use and the largest hole as steps, and below them the
// fragmentation from 0 to 100 %. A click chooses an instant among those that were looked at.

import { boxOf, drawByteAxis, drawTimeAxis, lastAtOrBefore, line } from "./axes.js";
import { timeGestures } from "./gestures.js";
import { Surface } from "./surface.js";
import { ink } from "./theme.js";
import * as units from "./units.js";

const STRIP_PX = 48;
const SPACE_PX = 16;
export const LINES = [
  ["reserved_bytes", "reserved", "#0072b2"],
  ["used_bytes", "in blocks", "#009e73"],
  ["largest_free_bytes", "largest hole", "#d55e00"],
];
const STRIP_COLOUR = "#cc79a7";

export class FragmentationPlot {
  // hover(place, x, y), leave(), pick(place): the place of the last instant at or before the pointer.
  constructor(parent, { height, label, range, limits, hover, leave, pick }) {
    this.columns = null;
    this.instant = null;
    this.surface = new Surface(parent, { height, label, paint: (g) => this.paint(g) });
    timeGestures(this.surface, {
      box: () => this.box,
      range: () => this.range ?? range(),
      limits,
      hover: (x, y) => this.at(x, (place) => hover(place, x, y)),
      leave,
      pick: (x) => this.at(x, pick),
    });
  }

  set(columns, from, to) {
    this.columns = columns;
    this.range = [from, to];
    this.highest = Math.max(1, ...columns.reserved_bytes) * 1.04;
    this.surface.draw();
  }

  // Marks the instant of an event by its time; null for none.
  mark(time) {
    this.instant = time;
    this.surface.draw();
  }

  get box() {
    return boxOf(this.surface.width, this.surface.height - STRIP_PX - SPACE_PX, { left: 76, bottom: 0 });
  }

  at(x, tell) {
    if (!this.columns?.time_ns.length) return;
    const [from, to] = this.range;
    const time = from + ((x - this.box.x) / this.box.width) * (to - from);
    tell(Math.max(0, lastAtOrBefore(this.columns.time_ns, time)));
  }

  paint(g) {
    if (!this.columns) return;
    const [from, to] = this.range;
    const top = this.box;
    const strip = { x: top.x, width: top.width, y: top.y + top.height + SPACE_PX, height: STRIP_PX - 20 };
    const x = (time) => top.x + ((time - from) / Math.max(to - from, 1)) * top.width;
    drawByteAxis(g, top, 0, this.highest);
    for (const [name, , colour] of LINES) this.steps(g, top, x, this.columns[name], this.highest, colour);
    g.fillStyle = ink("faint");
    g.strokeStyle = ink("line");
    g.textAlign = "right";
    g.textBaseline = "middle";
    for (const [share, y] of [["100 %", strip.y], ["0 %", strip.y + strip.height]]) {
      line(g, strip.x, y, strip.x + strip.width, y);
      g.fillText(share, strip.x - 6, y);
    }
    this.steps(g, strip, x, this.columns.fragmentation.map((each) => each ?? 0), 1, STRIP_COLOUR, true);
    drawTimeAxis(g, { ...strip, y: strip.y }, from, to);
    if (this.instant !== null) {
      g.strokeStyle = ink("accent");
      line(g, x(this.instant), top.y, x(this.instant), strip.y + strip.height);
    }
  }

  steps(g, box, x, values, highest, colour, filled = false) {
    const times = this.columns.time_ns;
    const y = (value) => box.y + box.height - (value / highest) * box.height;
    g.save();
    g.beginPath();
    g.rect(box.x, box.y - 1, box.width, box.height + 2);
    g.clip();
    g.beginPath();
    for (let i = 0; i < times.length; i += 1) {
      if (i) g.lineTo(x(times[i]), y(values[i - 1]));
      g[i ? "lineTo" : "moveTo"](x(times[i]), y(values[i]));
    }
    if (times.length) g.lineTo(box.x + box.width, y(values[values.length - 1]));
    g.strokeStyle = colour;
    g.lineWidth = 1.5;
    g.stroke();
    if (filled && times.length) {
      g.lineTo(box.x + box.width, box.y + box.height);
      g.lineTo(x(times[0]), box.y + box.height);
      g.fillStyle = `${colour}55`;
      g.fill();
    }
    g.restore();
  }

  destroy() {
    this.surface.destroy();
  }
}

// What a tip says of an instant.
export function instantLines(columns, place) {
  const share = columns.fragmentation[place];
  return [
    `${units.time(columns.time_ns[place])} · event ${units.count(columns.seq[place])}`,
    ...LINES.map(([name, title]) => `${title}: ${units.bytes(columns[name][place])}`),
    `unused: ${units.bytes(columns.unused_bytes[place])}`,
    share === null ? "nothing is unused" : `fragmentation: ${units.share(share)}`,
  ];
}
