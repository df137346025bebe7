// The editor of a statement: a plain field of text, with names that complete the word at the cursor below it.

import { announce, button, el } from "./dom.js";
import { refill } from "./focus.js";
import { completions, wordBefore } from "./sql_words.js";

export class SqlEditor {
  // run(text): called on Ctrl+Enter
  constructor(parent, { run, schema }) {
    this.schema = schema;
    this.offered = [];
    this.at = -1;
    this.list = el("div", { class: "offers", role: "listbox", id: "sql-offers", "aria-label": "names that fit" });
    this.field = el("textarea", {
      id: "sql-text",
      class: "code",
      rows: 9,
      spellcheck: false,
      autocomplete: "off",
      role: "combobox",
      "aria-label": "SQL statement",
      "aria-autocomplete": "list",
      "aria-controls": "sql-offers",
      "aria-expanded": "false",
      oninput: () => this.offer(),
      onclick: () => this.offer(),
      onblur: () => setTimeout(() => this.close(), 150),
      onkeydown: (event) => this.key(event, run),
    });
    parent.append(this.field, this.list);
  }

  get text() {
    return this.field.value;
  }

  set text(text) {
    this.field.value = text;
    this.close();
  }

  // Inserts a text at the cursor, in place of the word before it where `replaces`.
  insert(text, replaces = false) {
    const { selectionStart: cursor, selectionEnd: end } = this.field;
    const from = replaces ? cursor - wordBefore(this.text, cursor).length : cursor;
    this.field.setRangeText(text, from, end, "end");
    this.field.focus();
    this.close();
  }

  offer() {
    const found = completions(this.schema(), this.text, this.field.selectionStart);
    this.show(found, found.length ? 0 : -1);
  }

  close() {
    this.show([], -1);
  }

  show(offered, at) {
    this.offered = offered;
    this.at = at;
    this.field.setAttribute("aria-expanded", String(offered.length > 0));
    refill(
      this.list,
      ...offered.map((each, i) =>
        button(each.name, () => this.insert(each.insert, true), {
          id: `sql-offer-${i}`, role: "option", "aria-selected": String(i === at), title: each.what, tabIndex: -1, class: "offer",
        }),
      ),
    );
    if (at >= 0) this.field.setAttribute("aria-activedescendant", `sql-offer-${at}`);
    else this.field.removeAttribute("aria-activedescendant");
  }

  key(event, run) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      run(this.text);
    } else if (this.offered.length && event.key === "Escape") {
      event.stopPropagation();
      this.close();
    } else if (this.offered.length && (event.key === "ArrowRight" || event.key === "ArrowLeft") && event.altKey) {
      const step = event.key === "ArrowRight" ? 1 : -1;
      event.preventDefault();
      this.show(this.offered, (this.at + step + this.offered.length) % this.offered.length);
      announce(this.offered[this.at].name);
    } else if (this.offered.length && event.key === " " && event.ctrlKey) {
      event.preventDefault();
      this.insert(this.offered[this.at].insert, true);
    }
  }
}
