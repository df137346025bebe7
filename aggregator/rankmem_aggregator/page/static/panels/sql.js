// The user's own statement: editor, the schema beside it, and the rows as a table, curves or a heat map.

import * as api from "../api.js";
import { coloursOf } from "../colours.js";
import { announce, button, chooser, el, setOptions, toggles } from "../dom.js";
import { refill } from "../focus.js";
import { bind } from "../keys.js";
import { Panel } from "../panel.js";
import { legendEntry } from "../shades.js";
import { SqlEditor } from "../sql_editor.js";
import { cellsOf, linesOf, SqlPlot } from "../sql_plots.js";
import * as sqlText from "../sql_text.js";
import { schemaOf } from "../sql_words.js";
import * as state from "../state.js";
import { Table } from "../table.js";
import * as units from "../units.js";

const ROWS_SHOWN_MAX = 1000;
const FIRST = "SELECT session_id, name, state, num_ranks, peak_requested_bytes\nFROM session_overview\nORDER BY started_ns DESC";
const FORMS = [["table", "table"], ["curve", "curve"], ["heat", "heat map"]];

export function sqlPanel(root) {
  let schema = new Map();
  const place = el("section", { class: "card", "aria-labelledby": "sql-editor-title" });
  root.append(place);
  const writing = el("div", {});
  const reading = el("div", { class: "schema" });
  place.append(el("div", { class: "title" }, el("h2", { id: "sql-editor-title" }, "Statement")), el("div", { class: "columns2" }, writing, reading));
  const editor = new SqlEditor(writing, { run, schema: () => schema });
  const past = chooser("statements that ran before", [], "", (text) => text && (editor.text = text));
  writing.append(
    el(
      "div",
      { class: "tools" },
      button("run", () => run(editor.text), { title: "Ctrl+Enter" }),
      past,
      button("forget them", () => (sqlText.forget(), showPast()), { class: "quiet" }),
      el("span", { class: "note" }, "Ctrl+Enter runs it; Alt+→ chooses a name, Ctrl+Space takes it."),
    ),
  );

  function run(text) {
    const statement = text.trim();
    if (new TextEncoder().encode(statement).length > sqlText.TEXT_MAX) {
      announce("the statement is longer than 128 KiB");
      return;
    }
    if (statement === sqlText.text()) panel.refresh();
    else sqlText.open(statement || FIRST, state.get("show"));
  }

  function showPast() {
    setOptions(past, [["", "earlier statements"], ...sqlText.history().map((text) => [text, text.replace(/\s+/g, " ").slice(0, 60)])], "");
  }

  const panel = new Panel(root, {
    id: "sql",
    title: "Rows",
    reads: ["sql", "show"],
    asks: () => {
      editor.text = sqlText.text() || editor.text || FIRST;
      const text = sqlText.text();
      return text ? [["sql", { sql: text }, { post: true }]] : "Write a statement, or open a panel's: “open in SQL” above it.";
    },
    show: (answer) => {
      sqlText.remember(sqlText.text());
      showPast();
      showRows(answer);
    },
  });
  panel.table = () => ({ columns: panel.answers[0].names, rows: firstRows(panel.answers[0]).map((row) => row.values) });
  const legend = el("div", { class: "legend" });
  const forms = toggles("shown as", FORMS, state.get("show") ?? "table", (form) => state.change({ show: form === "table" ? null : form }));
  panel.tools.prepend(forms);
  const tablePlace = el("div", {});
  const problem = el("p", { class: "message", hidden: true });
  panel.body.append(problem, legend, tablePlace);
  const plot = new SqlPlot(panel.body);

  function showRows(answer) {
    const form = state.get("show") ?? "table";
    const { names, facts } = answer;
    const columns = names.map((_, i) => answer.table.getChildAt(i).toArray());
    const shown = form === "curve" ? linesOf(names, columns) : form === "heat" ? cellsOf(names, columns) : null;
    forms.set(form);
    problem.hidden = typeof shown !== "string";
    problem.textContent = typeof shown === "string" ? shown : "";
    panel.drawn = { form, names, rows: answer.length, shown };
    panel.note(`${units.count(answer.length)} ${answer.length === 1 ? "row" : "rows"}${facts.truncated ? ", the first of more: rankmem sql has no limit" : ""}`);
    plot.set(typeof shown === "string" ? null : shown);
    const colours = coloursOf((shown?.lines ?? []).map((line) => line.name));
    refill(legend, ...(shown?.lines ?? []).map((line, i) => legendEntry(line.name, colours[i])));
    refill(tablePlace);
    if (form === "table") showTable(answer, columns);
  }

  function showTable(answer, columns) {
    const rows = firstRows(answer);
    const table = new Table(tablePlace, {
      label: "rows of the statement",
      key: (row) => row.index,
      columns: answer.names.map((name, i) => ({
        name,
        title: name,
        align: columns[i].length && typeof columns[i][0] === "number" ? "right" : null,
        hint: answer.facts.types?.[i],
        text: (row) => (row.values[i] === null ? "NULL" : String(row.values[i])),
      })),
    });
    table.set(rows);
    if (rows.length < answer.length) tablePlace.append(el("p", { class: "note" }, `The first ${units.count(rows.length)} are shown; “save” has all.`));
  }

  async function loadSchema() {
    try {
      const rows = (await api.ask("schema")).rows();
      schema = schemaOf(rows);
      refill(reading, ...schemaElements(schema, (text) => editor.insert(text)));
    } catch (error) {
      refill(reading, el("p", { class: "message failed" }, error.message));
    }
  }

  const endKey = bind("e", "edit the SQL statement", () => editor.field.focus());
  showPast();
  loadSchema();
  panel.refresh();
  return {
    panel,
    destroy() {
      endKey();
      panel.destroy();
      plot.destroy();
      place.remove();
    },
  };
}

function firstRows(answer) {
  const columns = answer.names.map((_, i) => answer.table.getChildAt(i).toArray());
  const count = Math.min(answer.length, ROWS_SHOWN_MAX);
  return Array.from({ length: count }, (_, index) => ({ index, values: columns.map((column) => column[index]) }));
}

// The schema as a list that unfolds; a click on a name inserts it.
function schemaElements(schema, insert) {
  const list = el("div", { class: "scroll objects", tabIndex: 0, role: "region", "aria-label": "tables and views" });
  const filter = el("input", { type: "search", placeholder: "find a table or column", "aria-label": "find a table or column", oninput: () => fill() });
  const fill = () => {
    const wanted = filter.value.trim().toLowerCase();
    const fits = ({ name, columns }) => name.toLowerCase().includes(wanted) || columns.some((column) => column.name.toLowerCase().includes(wanted));
    const found = [...schema.values()].filter(fits);
    refill(list, ...found.map((each) => objectElement(each, insert)));
    if (!found.length) list.append(el("p", { class: "note" }, "Nothing has this name."));
  };
  fill();
  return [filter, list];
}

function objectElement(object, insert) {
  const details = el("details", {}, el("summary", {}, el("b", {}, object.name), el("span", { class: "note" }, ` ${object.kind}`)));
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    const rows = object.columns.map(({ name, type, meaning }) =>
      el("tr", {}, el("td", {}, button(name, () => insert(name), { class: "quiet code" })), el("td", {}, [type, meaning].filter(Boolean).join(": "))),
    );
    details.append(
      el("p", { class: "note" }, object.meaning),
      button(object.call, () => insert(object.call), { class: "quiet code" }),
      el("table", {}, el("tbody", {}, ...rows)),
    );
  });
  return details;
}
