// Axes of time and bytes: where ticks are, what they say, and how both are drawn around a box.

import { ink } from "./theme.js";
import * as units from "./units.js";

// The box within a canvas that is left for data.
export function boxOf(width, height, { left = 64, right = 8, top = 6, bottom = 20 } = {}) {
  return { x: left, y: top, width: Math.max(1, width - left - right), height: Math.max(1, height - top - bottom) };
}

// Round times within a range of ns, about `about` of them.
export function timeTicks(from, to, about = 8) {
  const step = niceStep((to - from) / about);
  const ticks = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) ticks.push(at);
  return { step, ticks };
}

// Round amounts of bytes from low to high: steps of 1, 2, 4, … of a binary unit.
function byteTicks(low, high, about = 4) {
  const span = Math.max(high - low, 1);
  const step = 2 ** Math.max(0, Math.round(Math.log2(span / about)));
  const ticks = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) ticks.push(at);
  return ticks;
}

// Draws the axis of time below a box, with its ticks.
export function drawTimeAxis(g, box, from, to) {
  const { step, ticks } = timeTicks(from, to, Math.max(2, box.width / 130));
  g.fillStyle = ink("faint");
  g.strokeStyle = ink("line");
  g.textAlign = "center";
  g.textBaseline = "top";
  for (const at of ticks) {
    const x = box.x + ((at - from) / (to - from)) * box.width;
    line(g, x, box.y + box.height, x, box.y + box.height + 4);
    const text = units.time(at, step);
    const half = g.measureText(text).width / 2;
    g.fillText(text, Math.min(Math.max(x, box.x + half), box.x + box.width - half), box.y + box.height + 5);
  }
}

// Draws the axis of bytes left of a box, with faint lines across it.
export function drawByteAxis(g, box, low, high, format = units.roundBytes) {
  g.fillStyle = ink("faint");
  g.strokeStyle = ink("line");
  g.textAlign = "right";
  g.textBaseline = "middle";
  for (const at of byteTicks(low, high, Math.max(2, box.height / 40))) {
    const y = box.y + box.height - ((at - low) / Math.max(high - low, 1)) * box.height;
    line(g, box.x, y, box.x + box.width, y);
    g.fillText(format(at), box.x - 6, y);
  }
}

export function line(g, x0, y0, x1, y1) {
  g.beginPath();
  g.moveTo(Math.round(x0) + 0.5, Math.round(y0) + 0.5);
  g.lineTo(Math.round(x1) + 0.5, Math.round(y1) + 0.5);
  g.stroke();
}

// The index of the last value at or before `at` in ascending values; -1 where all are later.
export function lastAtOrBefore(values, at) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= at) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].find((factor) => factor * power >= least) * power;
}
