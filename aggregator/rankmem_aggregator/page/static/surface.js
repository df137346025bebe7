// A canvas that is drawn when its data, size or theme has changed, at most once a frame.

import { el } from "./dom.js";
import * as state from "./state.js";
import { isPrinting, onTheme } from "./theme.js";

export const FONT = '11px system-ui, "DejaVu Sans", sans-serif';

const PRINT_SCALE = 2;

const surfaces = new WeakMap();
const shown = new Set();

// Draws all that is shown at once.
export function drawAll() {
  for (const surface of shown) surface.drawNow();
}

// The surface that draws on a canvas, for who saves it.
export function surfaceOf(canvas) {
  return surfaces.get(canvas) ?? null;
}

export class Surface {
  // `paint(g, width, height)` draws in CSS pixels; `label` says what it shows to who cannot see it.
  constructor(parent, { height, label, paint }) {
    this.paint = paint;
    this.canvas = el("canvas", { tabIndex: 0, role: "img", "aria-label": label, class: "surface" });
    this.canvas.style.height = `${height}px`;
    surfaces.set(this.canvas, this);
    shown.add(this);
    parent.append(this.canvas);
    this.width = 0;
    this.height = height;
    this.asked = 0;
    this.lastPaintMs = 0;
    this.sized = new ResizeObserver(() => this.draw());
    this.sized.observe(this.canvas);
    this.endTheme = onTheme(() => this.draw());
    this.endMarks = state.listen((changed) => changed.has("marks") && this.draw());
  }

  label(text) {
    this.canvas.setAttribute("aria-label", text);
  }

  setHeight(height) {
    this.canvas.style.height = `${height}px`;
    this.draw();
  }

  // Draws within the next frame.
  draw() {
    if (!this.asked) this.asked = requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    cancelAnimationFrame(this.asked);
    this.asked = 0;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !height) return;
    const begun = performance.now();
    const scale = Math.max(devicePixelRatio || 1, isPrinting() ? PRINT_SCALE : 1);
    const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
    if (this.canvas.width !== wide || this.canvas.height !== high) {
      this.canvas.width = wide;
      this.canvas.height = high;
    }
    this.width = width;
    this.height = height;
    const g = this.canvas.getContext("2d");
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, width, height);
    g.font = FONT;
    this.paint(g, width, height);
    this.lastPaintMs = performance.now() - begun;
  }

  destroy() {
    shown.delete(this);
    cancelAnimationFrame(this.asked);
    this.sized.disconnect();
    this.endTheme();
    this.endMarks();
    this.canvas.remove();
  }
}
