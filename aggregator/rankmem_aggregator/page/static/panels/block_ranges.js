// Ranges of size, age and times that filter the table of blocks: the state's `fit`, name:value;name:value, values in
// bytes and ns, and a dialog in which people give them.

import { button, el } from "../dom.js";
import * as quantities from "../quantities.js";
import * as state from "../state.js";
import * as units from "../units.js";

const ROWS = [
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

export function chooseRanges() {
  const given = ranges();
  const inputs = {};
  const wrong = el("p", { class: "note", role: "alert" });
  const input = (name, shown, title) => {
    const value = name in given ? exactText(Number(given[name]), shown) : "";
    return (inputs[name] = el("input", { type: "text", size: 16, value, "aria-label": `${title}, ${name.endsWith("min") || name.endsWith("from") ? "at least" : "at most"}` }));
  };
  const rows = ROWS.map(([title, low, high, , shown, hint]) =>
    el("tr", {}, el("th", { scope: "row" }, title), el("td", {}, input(low, shown, title)), el("td", {}, input(high, shown, title)), el("td", { class: "note" }, hint)),
  );
  const apply = () => {
    const chosen = {};
    for (const [title, low, high, read] of ROWS) {
      for (const name of [low, high]) {
        const text = inputs[name].value.trim();
        const value = text ? read(text) : null;
        if (text && value === null) {
          wrong.textContent = `${title}: ${text} cannot be read`;
          inputs[name].focus();
          return;
        }
        if (value !== null) chosen[name] = value;
      }
    }
    dialog.close();
    keep(chosen);
  };
  const entered = (event) => {
    if (event.key !== "Enter" || event.target.tagName !== "INPUT") return;
    event.preventDefault(); // or it would press the button that has the focus next
    apply();
  };
  const head = el("tr", {}, el("th", {}), el("th", { scope: "col" }, "at least"), el("th", { scope: "col" }, "at most"), el("th", {}));
  const dialog = el(
    "dialog",
    { "aria-label": "Ranges", onclose: () => dialog.remove(), onkeydown: entered },
    el("h2", {}, "Only blocks with"),
    el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)),
    wrong,
    el("p", { class: "tools" }, button("show", apply), button("no ranges", () => (dialog.close(), keep({}))), button("cancel", () => dialog.close())),
  );
  document.body.append(dialog);
  dialog.showModal();
}

function exactText(value, shown) {
  return shown === units.bytes ? `${value} B` : `${value} ns`;
}

function keep(chosen) {
  const text = NAMES.filter((name) => name in chosen).map((name) => `${name}:${chosen[name]}`);
  state.change({ fit: text.join(";") });
}
