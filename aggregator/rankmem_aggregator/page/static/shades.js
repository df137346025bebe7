// Colours of groups that several panels show: the same group has the same colour in each, and groups that come up
// together differ as long as there are colours.

import { coloursOf, ramp } from "./colours.js";
import { el } from "./dom.js";

// The group of blocks older than the recording of which no other is known.
export const OLDER = "before the recording";

const seen = ["unknown", OLDER];
const colours = new Map();

// The colour of a group by its name; a category's own, else the next one that is free.
export function shadeOf(name) {
  const text = name ?? "unknown";
  if (!colours.has(text)) {
    if (!seen.includes(text)) seen.push(text);
    colours.set(text, coloursOf(seen)[seen.indexOf(text)]);
  }
  return colours.get(text);
}

// Colours of groups that have an order, from the darkest to the brightest.
export function orderedShades(names) {
  const colours = ramp("amount");
  const hex = (part) => part.toString(16).padStart(2, "0");
  return names.map((_, i) => `#${colours[20 + Math.round((215 * i) / Math.max(1, names.length - 1))].map(hex).join("")}`);
}

// A square of a colour.
export function swatch(colour) {
  const box = el("span", { class: "swatch" });
  box.style.background = colour;
  return box;
}

// An entry of a legend: a swatch with the end of the name, where that is a path, and all of it as its title.
export function legendEntry(name, colour, more = "") {
  const text = name ?? "unknown";
  return el("span", { title: text }, swatch(colour), `${shortened(text)}${more ? ` ${more}` : ""}`);
}

// The last two parts of a path.
export function shortened(text) {
  const parts = text.split("/");
  return parts.length > 3 ? `…/${parts.slice(-2).join("/")}` : text;
}
