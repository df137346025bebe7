// The dialog in which people give the ranges that filter the table of blocks.

import { button, el, openDialog } from "../dom.js";
import * as units from "../units.js";
import { keep, ranges, ROWS } from "./block_ranges.js";

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
  const dialog = openDialog(
    "Ranges",
    { heading: "Only blocks with", onkeydown: entered },
    el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)),
    wrong,
    el("p", { class: "tools" }, button("show", apply), button("no ranges", () => (dialog.close(), keep({}))), button("cancel", () => dialog.close())),
  );
}

function exactText(value, shown) {
  return shown === units.bytes ? `${value} B` : `${value} ns`;
}
