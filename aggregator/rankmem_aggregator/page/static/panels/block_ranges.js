// Ranges of size, age and times that filter the table of blocks: the state's `fit`, name:value;name:value, values in
// bytes and ns. range_dialog.js is where people give them.

import * as quantities from "../quantities.js";
import * as state from "../state.js";
import * as units from "../units.js";

// A title, the names of its bounds, how they are read and shown, and an example.
export const ROWS = [
  ["size", "size_min", "size_max", quantities.bytes, units.bytes, "such as 512 KiB"],
  ["age", "age_min", "age_max", quantities.time, units.duration, "such as 20 ms"],
  ["allocated at", "made_from", "made_to", quantities.time, units.time, "such as +58.9 s"],
  ["freed at", "freed_from", "freed_to", quantities.time, units.time, "such as +59 s"],
];
const NAMES = ROWS.flatMap(([, low, high]) => [low, high]);

// The ranges as parameters of a question.
export function ranges() {
  const isOne = ([name, value]) => NAMES.includes(name) && /^-?\d{1,16}$/.test(value);
  const pairs = (text) => text.split(";").map((part) => part.split(":"));
  const read = (text) => (pairs(text).every(isOne) ? Object.fromEntries(pairs(text)) : null);
  return state.read("fit", read, "no range is applied") ?? {};
}

// The ranges as people read them: "size ≥ 1 MiB".
export function rangeTexts() {
  const given = ranges();
  return ROWS.flatMap(([title, low, high, , shown]) => [
    low in given ? [`${title} ≥ ${shown(Number(given[low]))}`, low] : null,
    high in given ? [`${title} ≤ ${shown(Number(given[high]))}`, high] : null,
  ]).filter(Boolean);
}

// Takes one bound away.
export function removeRange(name) {
  const { [name]: _, ...rest } = ranges();
  keep(rest);
}

// Sets all bounds.
export function keep(chosen) {
  const text = NAMES.filter((name) => name in chosen).map((name) => `${name}:${chosen[name]}`);
  state.change({ fit: text.join(";") });
}
