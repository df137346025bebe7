// MindStudio's tables: allocations and releases, linked to the range of the curves; and components.

import { button, chooser, el } from "../dom.js";
import { refill } from "../focus.js";
import { Panel } from "../panel.js";
import * as session from "../session.js";
import * as state from "../state.js";
import { Table } from "../table.js";
import * as units from "../units.js";

const PAGE_SIZES = ["10", "20", "50", "100", "500", "1000"];
const decimal = (value, digits = 3) => (value === null || value === undefined ? units.NOTHING : value.toFixed(digits));

export function mindstudioOperatorsPanel(root) {
  const asked = { name: "", least_kb: "", most_kb: "", only_within: "no", limit: "10", skipped: 0 };
  let sort = null;
  let total = 0;
  const panel = new Panel(root, {
    id: "mindstudio-operators",
    title: "Memory Allocation/Release Details",
    reads: ["rank", "from", "to"],
    asks: () => {
      const order = sort ? { sort: sort.name, descending: sort.descending ? "yes" : "no" } : {};
      const zoomed = state.get("from") !== null;
      const [from, to] = session.range();
      return [[session.of("mindstudio/operators"), { ...asked, ...order, rank: session.chosen()?.rank ?? 0, from: zoomed ? from : null, to: zoomed ? to : null }]];
    },
    show: (answer) => {
      total = answer.facts.total;
      const rows = answer.rows();
      if (!table) makeTable(answer.names);
      panel.drawn = { rows, total };
      panel.note(`${units.count(total)} records${state.get("from") === null ? "" : " of the interval"}`);
      table.set(rows, sort);
      drawPaging();
    },
  });
  const again = (changes) => {
    Object.assign(asked, { skipped: 0 }, changes);
    panel.refresh();
  };
  const input = (label, name, size) =>
    el("input", { "aria-label": label, placeholder: label, size, onchange: (event) => again({ [name]: event.target.value.trim() }) });
  const within = el("input", { type: "checkbox", onchange: (event) => again({ only_within: event.target.checked ? "yes" : "no" }) });
  const tools = el(
    "div",
    { class: "tools" },
    input("Operator name", "name", 24),
    input("Min Size(KB)", "least_kb", 10),
    input("Max Size(KB)", "most_kb", 10),
    el("label", {}, within, " Only show data allocated or released within the interval"),
  );
  const paging = el("div", { class: "tools" });
  panel.element.insertBefore(tools, panel.message);
  let table = null;

  function makeTable(names) {
    const columns = names.map((name) => ({
      name,
      title: name,
      align: name === "Name" ? null : "right",
      text: (row) => (typeof row[name] === "number" && /\((ms|KB|MB)\)/.test(name) ? decimal(row[name]) : row[name] === null ? units.NOTHING : String(row[name])),
    }));
    table = new Table(panel.body, {
      columns,
      key: (row) => `${row.Name}/${row["Allocation Time(ms)"]}`,
      label: "allocations",
      onSort: (next) => {
        sort = next;
        again({});
      },
    });
    panel.tools.prepend(table.columnChooser(), button("copy", () => table.copy(), { class: "quiet" }));
    panel.body.append(paging);
  }

  function drawPaging() {
    const limit = Number(asked.limit);
    const page = asked.skipped / limit + 1;
    refill(
      paging,
      button("previous", () => again({ skipped: asked.skipped - limit }), { disabled: asked.skipped === 0 }),
      el("span", {}, `page ${units.count(page)} of ${units.count(Math.max(1, Math.ceil(total / limit)))}`),
      button("next", () => again({ skipped: asked.skipped + limit }), { disabled: asked.skipped + limit >= total }),
      chooser("rows of a page", PAGE_SIZES, asked.limit, (size) => again({ limit: size })),
    );
  }

  return panel;
}

// The component table of MindStudio's group Component: peaks from 100 MB on.
export function mindstudioComponentsPanel(root) {
  const columns = ["Component", "Peak Memory Reserved(MB)", "Timestamp(ms)"].map((name) => ({
    name,
    title: name,
    align: name === "Component" ? null : "right",
    text: (row) => (name === "Component" ? row[name] : decimal(row[name])),
  }));
  const panel = new Panel(root, {
    id: "mindstudio-components",
    title: "Component",
    reads: ["rank"],
    asks: () => [[session.of("mindstudio/components"), { rank: session.chosen()?.rank ?? 0 }]],
    empty: "No component of this rank reserved 100 MB.",
    show: (answer) => {
      panel.drawn = answer.rows();
      panel.note("components that reserved 100 MB or more");
      table.set(panel.drawn);
    },
  });
  const table = new Table(panel.body, { columns, key: (row) => row.Component, label: "components" });
  return panel;
}
