// A panel: a card that shows the answers to questions. It states which keys of the state it reads; when one changes,
// what it still waits for is aborted and asked again. It fails alone, and says why and what to do.

import * as api from "./api.js";
import { announce, button, copyText, el, wanted } from "./dom.js";
import { keepFocus, refill } from "./focus.js";
import { basis, goOn, lasts } from "./lasting.js";
import * as session from "./session.js";
import * as sqlText from "./sql_text.js";
import * as state from "./state.js";
import { onTheme } from "./theme.js";
import * as units from "./units.js";

const TABLE_ROWS_MAX = 500;
const REST_MS = 120;
const panels = new Map();

// What show() returns where it cannot join the new part of an answer with what it has: all is asked for.
export const ASK_ALL = Symbol("ask all");

// What a panel has painted: its arrays, for tests and for exports.
export function drawn(id) {
  return panels.get(id)?.drawn ?? null;
}

export function panel(id) {
  return panels.get(id) ?? null;
}

export function allPanels() {
  return [...panels.values()];
}

export class Panel {
  // reads: keys of the state; asks(): a list of [path, parameters] (and {post: true} where they are long), or a text that
  // says what to do first; show(...answers): draws them; empty: what it says, or gives, where the first has no rows;
  // table(): {columns: [texts], rows: [[values]]} of what a canvas shows; newer(question, since): the question for what
  // came since, where show() can join it; hasSql: its rows come from one statement.
  constructor(parent, { id, title, reads, asks, show, empty = "", table = null, newer = null, hasSql = true, class: extra = "" }) {
    Object.assign(this, { id, reads: new Set(["s", ...reads]), asks, show, empty, table, newer });
    this.drawn = null;
    this.answers = [];
    this.heading = el("h2", { id: `${id}-title` }, title);
    this.noteElement = el("span", { class: "note" });
    this.tools = el("span", { class: "tools" });
    this.body = el("div", { class: "body" });
    this.message = el("div", { class: "message", hidden: true });
    this.misread = el("p", { class: "note misread", role: "status", hidden: true });
    this.element = el(
      "section",
      { class: `card ${extra}`, id, "aria-labelledby": `${id}-title` },
      el("div", { class: "title" }, this.heading, this.noteElement, el("span", { class: "grow" }), this.tools),
      this.misread,
      this.message,
      this.body,
    );
    parent.append(this.element);
    if (table) this.offerTable();
    this.tools.append(
      hasSql ? button("copy SQL", () => this.copySql(), { class: "quiet", title: "copy the statement of these rows" }) : "",
      id === "sql" || !hasSql ? "" : button("open in SQL", () => sqlText.open(this.sql()), { class: "quiet", title: "change the statement of these rows" }),
      button("save", () => wanted(import("./save.js"), (save) => save.choose(this)), { class: "quiet", title: "as a picture, rows or another tool's file" }),
    );
    panels.set(id, this);
    // Some colours of what is shown are the theme's.
    this.endTheme = onTheme(() => this.answers.length && this.drawn !== null && keepFocus(this.element, () => this.show(...this.answers)));
    this.stop = state.listen((changed) => {
      if ([...this.reads].some((key) => changed.has(key))) this.refreshSoon();
    });
  }

  note(text) {
    this.noteElement.textContent = text;
  }

  title(text) {
    this.heading.textContent = text;
  }

  // Refreshes at once, or a moment after it last did: a turn of the wheel changes the state dozens of times.
  refreshSoon() {
    if (this.later) return;
    this.element.setAttribute("aria-busy", "true");
    const due = (this.askedMs ?? -REST_MS) + REST_MS - performance.now();
    if (due <= 0) this.refresh();
    else this.later = setTimeout(() => this.refresh(), due);
  }

  // Asks its questions; what came in the meantime for an older state is dropped. `since`: nothing that is new is earlier.
  async refresh(since = null) {
    clearTimeout(this.later);
    this.later = null;
    this.askedMs = performance.now();
    this.waiting?.abort();
    const waiting = (this.waiting = new AbortController());
    const misread = new Map();
    const before = this.drawn !== null && this.message.hidden ? this.asked : null;
    const asked = (this.asked = state.collecting(misread, () => this.asks()));
    this.basis = basisNow();
    this.tellMisread(misread);
    if (asked === null || typeof asked === "string") {
      this.element.removeAttribute("aria-busy");
      this.say(asked ?? "");
      return;
    }
    this.element.setAttribute("aria-busy", "true");
    try {
      this.isPart = this.newer !== null && Number.isFinite(since) && goOn(before, asked);
      const questions = this.isPart ? asked.map((question) => this.newer(question, since)) : asked;
      const answers = await Promise.all(questions.map(([path, parameters, options]) => api.ask(path, parameters, waiting.signal, options)));
      if (waiting.signal.aborted) return;
      this.answers = answers;
      if (this.empty && !answers[0].length) {
        this.say(typeof this.empty === "function" ? this.empty() : this.empty);
      } else {
        let shown;
        keepFocus(this.element, () => {
          this.message.hidden = true;
          this.body.hidden = false;
          shown = state.collecting(misread, () => this.show(...answers));
        });
        if (shown === ASK_ALL) {
          await this.refresh();
          return;
        }
        this.tellMisread(misread);
        if (!this.table && this.body.querySelector("canvas")) {
          this.table = () => rowsOf(this.answers[0]);
          this.offerTable();
        }
        this.mark(answers);
        this.refreshTable();
      }
    } catch (error) {
      if (error.name === "AbortError" || waiting.signal.aborted) return;
      waiting.abort();
      this.fail(error);
    } finally {
      if (this.waiting === waiting && !this.later) this.element.removeAttribute("aria-busy");
    }
  }

  // Asks again for a running session, unless nothing that is new can be in what it shows: see lasting.js.
  async follow(newNs) {
    const isShown = this.drawn !== null && this.message.hidden;
    if (isShown && lasts(this.asked, this.basis, this.asks(), basisNow(), newNs)) return;
    await this.refresh(newNs);
  }

  // A text in place of the panel's body.
  say(text, hint = "", again = false) {
    this.drawn = null;
    keepFocus(this.element, () => {
      this.body.hidden = true;
      this.message.hidden = !text;
      this.message.className = again ? "message failed" : "message";
      refill(
        this.message,
        el("p", {}, text),
        hint ? el("p", { class: "hint" }, `Try: ${hint}`) : "",
        again ? button("again", () => this.refresh()) : "",
      );
    });
  }

  // Values of the link that were not understood, and what is shown instead.
  tellMisread(sentences) {
    this.misread.hidden = !sentences.size;
    this.misread.textContent = [...sentences.values()].join(" ");
  }

  fail(error) {
    this.say(error.message, error.hint ?? "", true);
    announce(`${this.heading.textContent}: ${error.message}`);
  }

  // An answer over a gap is marked, as its bytes may be wrong, and one from before a store went away.
  mark(answers) {
    const lines = answers.flatMap((answer) => (answer.complete === "True" ? [] : answer.missing));
    const isWrong = answers.some((answer) => answer.complete === "False");
    this.element.classList.toggle("incomplete", lines.length > 0);
    this.heading.title = lines.length ? `${isWrong ? "not exact" : "may not be exact"}: ${[...new Set(lines)].join("; ")}` : "";
  }

  // The statement of the rows, as `rankmem sql` runs it.
  sql() {
    return this.answers.map((answer) => answer.facts.sql).filter(Boolean).join(";\n\n");
  }

  async copySql() {
    const text = this.sql();
    this.copied = text;
    if (text) await copyText(text, "the SQL");
    else announce("this panel has no SQL yet");
  }

  offerTable() {
    this.tools.prepend(button("table", () => this.toggleTable(), { class: "quiet", title: "what is drawn, as a table" }));
  }

  toggleTable() {
    this.tableElement = this.tableElement ? (this.tableElement.remove(), null) : el("div", { class: "scroll" });
    if (this.tableElement) {
      this.body.append(this.tableElement);
      this.refreshTable();
    }
  }

  refreshTable() {
    if (!this.tableElement) return;
    // Nothing is drawn where a text stands in its place.
    const { columns, rows: all } = this.drawn === null ? { columns: [], rows: [] } : this.table();
    const rows = all.slice(0, TABLE_ROWS_MAX);
    refill(
      this.tableElement,
      all.length > rows.length ? el("p", { class: "note" }, `the first ${units.count(rows.length)} of ${units.count(all.length)} rows`) : "",
      el(
        "table",
        {},
        el("thead", {}, el("tr", {}, ...columns.map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((value) => el("td", {}, String(value)))))),
      ),
    );
  }

  destroy() {
    this.stop();
    this.endTheme();
    clearTimeout(this.later);
    this.waiting?.abort();
    panels.delete(this.id);
    this.element.remove();
  }
}

function basisNow() {
  return basis(session.job(), session.job() ? session.chosen() : null);
}

// What a view has of a panel with plots: what refreshes them, and takes them down.
export function partsOf(panel, ...plots) {
  return {
    panel,
    plot: plots[0],
    refresh: () => panel.refresh(),
    destroy: () => {
      panel.destroy();
      for (const plot of plots) plot.destroy();
    },
  };
}

// The first rows of an answer, for a panel that gives no table of its own.
function rowsOf(answer) {
  const columns = answer.names.map((_, i) => answer.table.getChildAt(i).toArray());
  const rows = Array.from({ length: Math.min(answer.length, TABLE_ROWS_MAX) }, (_, row) => columns.map((column) => column[row] ?? units.NOTHING));
  return { columns: answer.names, rows };
}
