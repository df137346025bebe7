// A surface as SVG: its paint() draws on a context that writes down what it is asked to draw. What cannot be written
// as lines and texts (a pattern, a path made elsewhere) makes the whole picture one embedded PNG instead.

import { FONT } from "./surface.js";
import { ink } from "./theme.js";

// The text of an SVG file with the surface's picture, in the colours of the theme that is shown.
export function svgOf(surface) {
  const { width, height } = surface;
  const background = `<rect width="${width}" height="${height}" fill="${escaped(ink("card"))}"/>`;
  let inner;
  try {
    const recorder = new Recorder(surface.canvas);
    surface.paint(recorder, width, height);
    inner = recorder.parts.join("\n");
  } catch (error) {
    if (!(error instanceof NotRecorded)) throw error;
    surface.drawNow();
    inner = picture(surface.canvas, 0, 0, width, height);
  }
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">\n${background}\n${inner}\n</svg>\n`;
}

class NotRecorded extends Error {}

function escaped(text) {
  // Characters that XML 1.0 has no way to write become the replacement character.
  return String(text)
    .replace(/[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu, "\ufffd")
    .replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`);
}

function picture(canvas, x, y, width, height) {
  return `<image x="${x}" y="${y}" width="${width}" height="${height}" preserveAspectRatio="none" image-rendering="pixelated" href="${canvas.toDataURL("image/png")}"/>`;
}

const KEPT = ["fillStyle", "strokeStyle", "lineWidth", "globalAlpha", "font", "textAlign", "textBaseline", "dash", "matrix", "clipId"];
const ANCHOR = { left: "start", start: "start", center: "middle", right: "end", end: "end" };
const BASELINE = { top: "text-before-edge", middle: "central", bottom: "text-after-edge", alphabetic: "alphabetic", hanging: "hanging" };
let clips = 0;

// The part of CanvasRenderingContext2D that our panels use.
class Recorder {
  constructor(canvas) {
    this.canvas = canvas;
    this.parts = [];
    this.measuring = document.createElement("canvas").getContext("2d");
    this.stack = [];
    this.path = "";
    Object.assign(this, {
      fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, globalAlpha: 1, font: FONT, textAlign: "start",
      textBaseline: "alphabetic", dash: [], matrix: new DOMMatrix(), clipId: null, imageSmoothingEnabled: true,
      lineJoin: "miter", lineCap: "butt",
    });
    // A method that is not recorded ends the recording.
    return new Proxy(this, {
      get: (target, name) => {
        if (name in target || typeof name === "symbol") return target[name];
        throw new NotRecorded(String(name));
      },
    });
  }

  save() {
    this.stack.push(KEPT.map((name) => this[name]));
  }

  restore() {
    const kept = this.stack.pop();
    if (kept) KEPT.forEach((name, i) => (this[name] = kept[i]));
  }

  translate(x, y) {
    this.matrix = this.matrix.translate(x, y);
  }

  scale(x, y) {
    this.matrix = this.matrix.scale(x, y);
  }

  rotate(angle) {
    this.matrix = this.matrix.rotate((angle * 180) / Math.PI);
  }

  setLineDash(dash) {
    this.dash = dash;
  }

  beginPath() {
    this.path = "";
  }

  moveTo(x, y) {
    this.path += `M${short(x)} ${short(y)}`;
  }

  lineTo(x, y) {
    this.path += `${this.path ? "L" : "M"}${short(x)} ${short(y)}`;
  }

  closePath() {
    this.path += "Z";
  }

  rect(x, y, width, height) {
    this.path += box(x, y, width, height);
  }

  roundRect(x, y, width, height) {
    this.rect(x, y, width, height);
  }

  arc(x, y, radius, begin, end) {
    if (Math.abs(end - begin) < 2 * Math.PI - 1e-6) throw new NotRecorded("arc");
    this.path += `M${short(x - radius)} ${short(y)}a${radius} ${radius} 0 1 0 ${2 * radius} 0a${radius} ${radius} 0 1 0 ${-2 * radius} 0Z`;
  }

  fill(...given) {
    this.only(given);
    this.add(`<path d="${this.path}" ${this.filled()}/>`);
  }

  stroke(...given) {
    this.only(given);
    this.add(`<path d="${this.path}" ${this.stroked()}/>`);
  }

  clip(...given) {
    this.only(given);
    clips += 1;
    const id = `clip${clips}`;
    this.add(`<clipPath id="${id}"><path d="${this.path}"/></clipPath>`);
    this.clipId = id;
  }

  fillRect(x, y, width, height) {
    this.add(`<path d="${box(x, y, width, height)}" ${this.filled()}/>`);
  }

  strokeRect(x, y, width, height) {
    this.add(`<path d="${box(x, y, width, height)}" ${this.stroked()}/>`);
  }

  clearRect() {}

  fillText(text, x, y) {
    const anchor = `text-anchor="${ANCHOR[this.textAlign]}" dominant-baseline="${BASELINE[this.textBaseline]}"`;
    this.add(`<text x="${short(x)}" y="${short(y)}" ${anchor} style="font:${escaped(this.font)}" xml:space="preserve" ${this.filled()}>${escaped(text)}</text>`);
  }

  measureText(text) {
    this.measuring.font = this.font;
    return this.measuring.measureText(text);
  }

  drawImage(image, ...place) {
    const [x, y, width, height] = place.length === 8 ? place.slice(4) : place;
    if (place.length === 8 || !image.toDataURL) throw new NotRecorded("drawImage");
    this.add(picture(image, short(x), short(y), short(width ?? image.width), short(height ?? image.height)));
  }

  only(given) {
    if (given.some((each) => typeof each === "object")) throw new NotRecorded("path");
  }

  add(part) {
    const clip = this.clipId && !part.startsWith("<clipPath") ? ` clip-path="url(#${this.clipId})"` : "";
    const { a, b, c, d, e, f } = this.matrix;
    const moved = this.matrix.isIdentity ? part : `<g transform="matrix(${[a, b, c, d, e, f].map(short).join(" ")})">${part}</g>`;
    this.parts.push(clip ? `<g${clip}>${moved}</g>` : moved);
  }

  filled() {
    return `fill="${colour(this.fillStyle)}"${this.faded()}`;
  }

  stroked() {
    const dash = this.dash.length ? ` stroke-dasharray="${this.dash.join(" ")}"` : "";
    return `fill="none" stroke="${colour(this.strokeStyle)}" stroke-width="${this.lineWidth}"${dash}${this.faded()}`;
  }

  faded() {
    return this.globalAlpha < 1 ? ` opacity="${this.globalAlpha}"` : "";
  }
}

function colour(style) {
  if (typeof style !== "string") throw new NotRecorded("pattern");
  return escaped(style);
}

function box(x, y, width, height) {
  return `M${short(x)} ${short(y)}h${short(width)}v${short(height)}h${short(-width)}Z`;
}

function short(number) {
  return Math.round(number * 100) / 100;
}
