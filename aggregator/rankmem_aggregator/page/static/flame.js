// A flame graph on a canvas: a box a frame, as wide as its bytes. What is narrower than half a pixel is passed over with
// all below it, so that the time of drawing goes with what is seen and not with what there is.

import { colourOf } from "./colours.js";
import { laidOut } from "./flame_trees.js";
import { Surface } from "./surface.js";
import { ink, isDark } from "./theme.js";

const ROW = 18;
const LEAST_PX = 0.5;
const TEXT_LEAST_PX = 24;
const SHADES = 24;
const OUTLINE_PX = 2;
const colours = new Map();

export class FlameGraph {
  // upward: the root is at the bottom; hover(node, x, y), leave(), pick(node, event), menu(node, event): of a box;
  // colours(node): [fill, text] of a box, where they are not those of its name.
  constructor(parent, { label, upward = false, hover, leave, pick, menu, colours: given = null }) {
    Object.assign(this, { given, upward, focus: 0, hits: null, path: new Set(), painted: [], tree: laidOut({ parent: [], kind: [], name: [], bytes: [], blocks: [] }) });
    this.surface = new Surface(parent, { height: ROW, label, paint: (g, width, height) => this.paint(g, width, height) });
    const { canvas } = this.surface;
    const at = (event) => this.nodeAt(event.offsetX, event.offsetY);
    canvas.addEventListener("pointermove", (event) => {
      const node = at(event);
      canvas.style.cursor = node < 0 ? "" : "pointer";
      if (node < 0) leave?.();
      else hover?.(node, event.offsetX, event.offsetY);
    });
    canvas.addEventListener("pointerleave", () => leave?.());
    canvas.addEventListener("click", (event) => at(event) >= 0 && pick?.(at(event), event));
    canvas.addEventListener("contextmenu", (event) => {
      if (at(event) < 0) return;
      event.preventDefault();
      menu?.(at(event), event);
    });
    canvas.addEventListener("keydown", (event) => this.key(event, pick));
  }

  // Shows nodes in depth-first order: {parent, kind, name, bytes, blocks}.
  set(nodes) {
    this.tree = laidOut(nodes);
    this.hits = null;
    this.path = new Set();
    this.cursor = 0;
    this.zoom(0);
  }

  // Shows one node as wide as the canvas, and what is below it.
  zoom(node) {
    this.focus = node < this.tree.count ? node : 0;
    let deepest = 0;
    for (let i = this.focus; i < (this.tree.end[this.focus] ?? 0); i += 1) deepest = Math.max(deepest, this.tree.depth[i]);
    const rows = deepest - (this.tree.depth[this.focus] ?? 0) + 1;
    this.surface.setHeight(Math.max(1, rows) * ROW);
  }

  // Outlines these nodes.
  outline(nodes) {
    this.path = new Set(nodes);
    this.surface.draw();
  }

  // Marks the nodes that fit; null: none is marked. Returns the bytes of the outermost of them.
  mark(fits) {
    const { tree } = this;
    this.hits = fits ? Uint8Array.from({ length: tree.count }, (_, i) => (i > 0 && fits(tree.name[i]) ? 1 : 0)) : null;
    this.surface.draw();
    let bytes = 0;
    let count = 0;
    for (let i = 1; this.hits && i < tree.count; i += 1) count += this.hits[i];
    for (let i = 1; this.hits && i < tree.count; ) {
      bytes += this.hits[i] ? tree.bytes[i] : 0;
      i = this.hits[i] ? tree.end[i] : i + 1;
    }
    return { bytes, count };
  }

  paint(g, width, height) {
    const { tree, focus } = this;
    this.painted = [];
    if (!tree.count) return;
    g.textBaseline = "middle";
    g.textAlign = "left";
    const begin = tree.begin[focus];
    const scale = width / Math.max(1, tree.bytes[focus]);
    for (let i = focus; i < tree.end[focus]; ) {
      const wide = tree.bytes[i] * scale;
      if (wide < LEAST_PX && i !== focus) {
        i = tree.end[i];
        continue;
      }
      const row = tree.depth[i] - tree.depth[focus];
      const y = this.upward ? height - (row + 1) * ROW : row * ROW;
      this.box(g, i, (tree.begin[i] - begin) * scale, y, wide);
      i += 1;
    }
  }

  box(g, i, x, y, wide) {
    const { tree } = this;
    const faded = this.hits !== null && !this.hits[i];
    const [fill, text] = faded ? [ink("hover"), ink("faint")] : (this.given?.(i) ?? coloursOf(tree.kind[i], tree.name[i]));
    g.fillStyle = this.hits?.[i] ? ink("accent") : fill;
    g.fillRect(x, y, Math.max(wide - 1, LEAST_PX), ROW - 1);
    if (i === this.cursor && i !== this.focus) {
      g.strokeStyle = ink("ink");
      g.strokeRect(x + 0.5, y + 0.5, Math.max(wide - 2, 1), ROW - 2);
    }
    if (this.path.has(i)) {
      g.strokeStyle = ink("sel");
      g.lineWidth = OUTLINE_PX;
      g.strokeRect(x + OUTLINE_PX / 2, y + OUTLINE_PX / 2, Math.max(wide - 1 - OUTLINE_PX, 1), ROW - 1 - OUTLINE_PX);
      g.lineWidth = 1;
    }
    if (wide >= TEXT_LEAST_PX) {
      g.fillStyle = this.hits?.[i] ? ink("card") : text;
      g.fillText(fitted(g, shortName(tree.kind[i], tree.name[i]), wide - 8), x + 4, y + ROW / 2);
    }
    this.painted.push({ node: i, x, y, width: wide });
  }

  nodeAt(x, y) {
    const found = this.painted.find((box) => x >= box.x && x < box.x + box.width && y >= box.y && y < box.y + ROW);
    return found ? found.node : -1;
  }

  // Arrows go to the parent, the first child and the neighbours; Enter picks.
  key(event, pick) {
    const { tree, cursor } = this;
    const below = cursor + 1 < tree.end[cursor] ? cursor + 1 : cursor;
    const down = this.upward ? tree.parent[cursor] : below;
    const up = this.upward ? below : tree.parent[cursor];
    const to = { ArrowDown: down, ArrowUp: up, ArrowRight: this.neighbour(1), ArrowLeft: this.neighbour(-1) }[event.key];
    if (to !== undefined) {
      this.cursor = Math.max(0, to);
      this.surface.label(`${tree.name[this.cursor]}, ${tree.bytes[this.cursor]} bytes, ${tree.blocks[this.cursor]} blocks`);
      this.surface.draw();
    } else if (event.key === "Enter") {
      pick?.(cursor, event);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  neighbour(by) {
    const { tree, cursor } = this;
    const same = [];
    const above = tree.parent[cursor];
    for (let i = above + 1; above >= 0 && i < tree.end[above]; i = tree.end[i]) same.push(i);
    return same[same.indexOf(cursor) + by] ?? cursor;
  }

  destroy() {
    this.surface.destroy();
  }
}

// A frame without its folders, as a box has no room for them; the tooltip has it whole.
export function shortName(kind, name) {
  const found = kind === "frame" ? /^(.+?:\d+) (.*)$/.exec(name) : null;
  return found ? `${found[2]}  ${found[1].slice(found[1].lastIndexOf("/") + 1)}` : name;
}

// Fill and text of a box. Frames of one file have one colour; those of libraries and of C++ are grey.
function coloursOf(kind, name) {
  const key = `${isDark()} ${kind} ${name}`;
  let found = colours.get(key);
  if (!found) {
    if (colours.size > 50_000) colours.clear();
    found = madeColours(kind, name);
    colours.set(key, found);
  }
  return found;
}

function madeColours(kind, name) {
  if (kind === "category") return [colourOf(name), textOn(rgbOf(colourOf(name)))];
  if (kind === "root" || kind === "none" || kind === "others") return [ink("line"), ink("ink")];
  const file = kind === "frame" ? name.split(":")[0] : name;
  let hash = 0;
  for (let i = 0; i < file.length; i += 1) hash = (hash * 31 + file.charCodeAt(i)) >>> 0;
  const library = kind === "frame" && (/(site|dist)-packages|^<|^torch\/|\/lib\/python3/.test(file) || !file.endsWith(".py"));
  const hue = library ? 210 : 14 + ((hash % SHADES) / SHADES) * 40;
  const saturation = library ? 14 : 62;
  const light = (isDark() ? 26 : 74) + (hash % 5) * 2;
  const rgb = rgbOfHsl(hue, saturation / 100, light / 100);
  return [`rgb(${rgb.join(" ")})`, textOn(rgb)];
}

function rgbOf(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

function rgbOfHsl(hue, saturation, light) {
  const part = (n) => {
    const k = (n + hue / 30) % 12;
    return light - saturation * Math.min(light, 1 - light) * Math.max(-1, Math.min(k - 3, 9 - k, 1));
  };
  return [part(0), part(8), part(4)].map((each) => Math.round(each * 255));
}

// Black or white, whichever is told apart better: 4.5 : 1 on any colour.
function textOn(rgb) {
  const [r, g, b] = rgb.map((each) => (each / 255 <= 0.03928 ? each / 255 / 12.92 : ((each / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

const letterWidths = new Map();

// As much of a text as is not wider than that, from widths of letters that are measured once.
function fitted(g, text, most) {
  let wide = 0;
  for (let i = 0; i < text.length; i += 1) {
    const letter = text[i];
    if (!letterWidths.has(letter)) letterWidths.set(letter, g.measureText(letter).width);
    wide += letterWidths.get(letter);
    if (wide > most) return i > 3 ? `${text.slice(0, i - 2)}…` : "";
  }
  return text;
}
