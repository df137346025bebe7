// A table of rows: columns to choose, sorting in three states, keyboard, copying.

import { button, copyText, el, openDialog } from "./dom.js";
import { keepFocus, refill } from "./focus.js";
import { noFormula } from "./formulas.js";
import { shortened } from "./shades.js";

export class Table {
  // columns: [{name, title, text(row), align: "right", hint}]; sort: {name, descending} or null and onSort(sort) where
  // its owner sorts; onPick(row) when a row is clicked or Enter is pressed on it; key(row): what identifies a row.
  // name: under which this browser keeps the choice of columns; arrows: whether arrow keys go from row to row; a column's
  // copied(row) is its exact value for copying, and where it has isPath the last two parts of a path are shown.
  constructor(parent, { columns, onSort = null, onPick = null, key = (row) => row, label = "rows", name = "", arrows = false }) {
    Object.assign(this, { columns, onSort, onPick, key, name, rows: [], sort: null, picked: null });
    const kept = name && localStorage.getItem(`rankmem-columns-${name}`)?.split(",");
    for (const column of kept ? columns : []) column.hidden = !kept.includes(column.name);
    this.shown = columns.filter((column) => !column.hidden);
    this.head = el("thead");
    this.bodyElement = el("tbody");
    this.element = el("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": label }, el("table", {}, this.head, this.bodyElement));
    parent.append(this.element);
    if (arrows) this.bodyElement.addEventListener("keydown", (event) => this.step(event));
  }

  // Arrows, Home and End go from row to row.
  step(event) {
    const rows = [...this.bodyElement.children];
    const at = rows.indexOf(event.target.closest("tr"));
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (at < 0 || to === undefined || !rows[to]) return;
    event.preventDefault();
    event.stopPropagation();
    rows[to].focus();
  }

  // Shows these rows; `sort` is how they are sorted.
  set(rows, sort = this.sort) {
    this.rows = rows;
    this.sort = sort;
    keepFocus(this.element, () => {
      this.drawHead();
      refill(this.bodyElement, ...rows.map((row) => this.rowElement(row)));
    });
    this.mark(this.picked);
  }

  // Shows or hides a column.
  showColumn(name, on) {
    for (const column of this.columns) if (column.name === name) column.hidden = !on;
    this.shown = this.columns.filter((column) => !column.hidden);
  }

  // Marks the row with this key.
  mark(key) {
    this.picked = key;
    for (const row of this.bodyElement.children) row.classList.toggle("on", key !== null && row.dataset.key === String(key));
  }

  // Focuses the row with this key, where there is one.
  focus(key) {
    [...this.bodyElement.children].find((row) => row.dataset.key === String(key))?.focus({ preventScroll: true });
  }

  // The rows as tab-separated text that a spreadsheet takes as text and numbers, never as formulas.
  text() {
    const safe = (value) => noFormula(String(value ?? "").replace(/[\t\r\n]+/g, " "));
    const lines = [this.shown.map((column) => safe(column.title))];
    for (const row of this.rows) lines.push(this.shown.map((column) => safe((column.copied ?? column.text)(row))));
    return lines.map((line) => line.join("\t")).join("\n");
  }

  async copy() {
    this.copied = this.text();
    await copyText(this.copied, `${this.rows.length} rows`);
  }

  // A button that opens the choice of columns.
  columnChooser() {
    return button("columns", () => this.chooseColumns(), { class: "quiet" });
  }

  chooseColumns() {
    const box = (column) =>
      el(
        "label",
        {},
        el("input", {
          type: "checkbox",
          checked: this.shown.includes(column),
          onchange: (event) => {
            column.hidden = !event.target.checked;
            this.shown = this.columns.filter((each) => !each.hidden);
            if (this.name) localStorage.setItem(`rankmem-columns-${this.name}`, this.shown.map((each) => each.name).join(","));
            this.set(this.rows);
          },
        }),
        ` ${column.title}`,
      );
    const dialog = openDialog("Columns", {}, el("div", { class: "choices" }, ...this.columns.map(box)), button("close", () => dialog.close()));
  }

  drawHead() {
    refill(
      this.head,
      el(
        "tr",
        {},
        ...this.shown.map((column) => {
          const on = this.sort?.name === column.name;
          const arrow = on ? (this.sort.descending ? " ↓" : " ↑") : "";
          const inside = this.onSort
            ? button(`${column.title}${arrow}`, () => this.onSort(nextSort(this.sort, column.name)), { class: "sort", "data-key": column.name })
            : column.title;
          const order = on ? (this.sort.descending ? "descending" : "ascending") : null;
          return el("th", { scope: "col", title: column.hint ?? null, "aria-sort": order, class: column.align ?? null }, inside);
        }),
      ),
    );
  }

  rowElement(row) {
    const pick = this.onPick ? () => this.onPick(row) : null;
    return el(
      "tr",
      {
        "data-key": String(this.key(row)),
        tabIndex: pick ? 0 : -1,
        onclick: pick,
        onkeydown: pick && ((event) => event.key === "Enter" && pick()),
      },
      ...this.shown.map((column) => {
        const text = column.text(row);
        const shown = column.isPath ? shortened(text) : text;
        return el("td", { class: column.align ?? null, title: text && (text.length > 40 || shown !== text) ? text : null }, shown);
      }),
    );
  }
}

// A click on a heading: descending, ascending, as it was.
function nextSort(sort, name) {
  if (sort?.name !== name) return { name, descending: true };
  return sort.descending ? { name, descending: false } : null;
}
