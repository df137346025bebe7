// MindStudio Insight's Memory page, with its own names, MB and ms: choosers; curves with the peaks' title; the tables of
// allocations and of components; static graphs.

import { CurvePlot } from "../curve.js";
import { coloursOf } from "../colours.js";
import { button, chooser, el } from "../dom.js";
import { Panel } from "../panel.js";
import * as session from "../session.js";
import * as state from "../state.js";
import { Table } from "../table.js";
import * as tip from "../tip.js";
import * as units from "../units.js";

const PAGE_SIZES = ["10", "20", "50", "100", "500", "1000"];
const decimal = (value, digits = 3) => (value === null || value === undefined ? units.NOTHING : value.toFixed(digits));

export default {
  name: "mindstudio",
  title: "MindStudio",
  needsJob: true,
  mount(root) {
    units.setStyle("mindstudio");
    root.append(choosers());
    const parts = [curvePanel(root), operatorsPanel(root), componentsPanel(root), graphsPanel(root)];
    for (const part of parts) part.refresh();
    return () => {
      for (const part of parts) part.destroy();
      units.setStyle(state.get("style"));
    };
  },
};

// Area 1: host, rank, grouping, and what to compare with.
function choosers() {
  const { ranks } = session.job();
  const chosen = session.chosen();
  const hosts = [...new Set(ranks.map((row) => row.host_name ?? "unknown"))];
  const host = chosen?.host_name ?? hosts[0];
  const ofHost = [...new Set(ranks.filter((row) => (row.host_name ?? "unknown") === host).map((row) => String(row.rank)))];
  const firstOf = (name) => ranks.find((row) => (row.host_name ?? "unknown") === name)?.rank;
  const open = (rank) => state.change({ rank, attempt: null, device: null, seq: null });
  const [from, to] = session.range();
  const side = (rank) => `/${rank}/made=${Math.round(from)}:${Math.round(to)}`;
  const others = [...new Set(ranks.map((row) => String(row.rank)))].filter((rank) => rank !== String(chosen?.rank));
  return el(
    "section",
    { class: "card", id: "mindstudio-choosers", "aria-label": "MindStudio's choosers" },
    el(
      "div",
      { class: "tools" },
      "Host Name ",
      chooser("Host Name", hosts, host, (name) => open(firstOf(name))),
      "Rank ID ",
      chooser("Rank ID", ofHost, String(chosen?.rank ?? ""), (rank) => open(rank)),
      "Group By ",
      chooser("Group By", [["overall", "Overall"], ["stream", "Stream"], ["component", "Component"]], state.get("by") ?? "overall", (by) => state.change({ by })),
      others.length ? "Compare with " : "",
      others.length
        ? chooser("Compare with", [["", "no rank"], ...others.map((rank) => [rank, `rank ${rank}`])], "", (rank) =>
            state.change({ view: "diff", by: "operator", a: side(chosen.rank), b: side(rank) }),
          )
        : "",
    ),
  );
}

const grouping = () => (["overall", "stream", "component"].includes(state.get("by")) ? state.get("by") : "overall");

// Area 2: the curves; their title has the peaks.
function curvePanel(root) {
  let lines = [];
  const hidden = new Set();
  const panel = new Panel(root, {
    id: "mindstudio-curve",
    title: "Memory",
    reads: ["rank", "by", "from", "to"],
    asks: () => [[session.of("mindstudio/curve"), { rank: session.chosen()?.rank ?? 0, by: grouping(), points: 4000 }]],
    empty: "MindStudio's curves need the allocator's or the process's totals; this rank has none of them.",
    show: (answer) => {
      const legend = [...answer.column("legend")];
      const [ms, mb] = [answer.column("time_ms"), answer.column("mb")];
      const names = [...new Set(legend)];
      const colours = coloursOf(names);
      lines = names.map((name, i) => {
        const at = legend.flatMap((each, k) => (each === name ? [k] : []));
        return { name, colour: colours[i], times: at.map((k) => ms[k] * 1e6), values: at.map((k) => mb[k] * 2 ** 20) };
      });
      panel.drawn = { title: answer.facts.title, lines };
      panel.title(answer.facts.title || "Memory");
      panel.note(answer.facts.exact ? "every record is drawn" : "highest and lowest of each part are drawn");
      drawLegend();
      draw();
    },
    table: () => ({ columns: ["curve", "points", "peak"], rows: lines.map((one) => [one.name, one.times.length, units.bytes(Math.max(...one.values))]) }),
  });
  const legendElement = el("div", { class: "legend" });
  panel.body.append(legendElement);
  const plot = new CurvePlot(panel.body, {
    height: 260,
    label: "MindStudio's memory curves of the chosen rank",
    range: session.range,
    limits: session.limits,
    hover: (time, x, y) => tip.showAt(plot.surface, x, y, [units.time(time), ...lines.map((one) => `${one.name}: ${units.bytes(valueAt(one, time))}`)]),
    leave: tip.hide,
  });

  function drawLegend() {
    legendElement.replaceChildren(
      ...lines.map((one) => {
        const swatch = el("span", { class: "swatch" });
        swatch.style.background = one.colour;
        const press = () => {
          if (!hidden.delete(one.name)) hidden.add(one.name);
          drawLegend();
          draw();
        };
        return el("button", { type: "button", class: "quiet", onclick: press, "aria-pressed": String(!hidden.has(one.name)) }, swatch, one.name);
      }),
    );
  }

  function draw() {
    const [from, to] = session.range();
    plot.set({ lines: lines.filter((one) => !hidden.has(one.name)), from, to });
  }

  return {
    refresh: () => panel.refresh(),
    destroy: () => {
      panel.destroy();
      plot.destroy();
    },
  };
}

function valueAt({ times, values }, time) {
  let found = null;
  for (let i = 0; i < times.length && times[i] <= time; i += 1) found = values[i];
  return found;
}

// Area 3: the table of allocations, linked to the range of the curves.
function operatorsPanel(root) {
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
    paging.replaceChildren(
      button("previous", () => again({ skipped: asked.skipped - limit }), { disabled: asked.skipped === 0 }),
      el("span", {}, `page ${units.count(page)} of ${units.count(Math.max(1, Math.ceil(total / limit)))}`),
      button("next", () => again({ skipped: asked.skipped + limit }), { disabled: asked.skipped + limit >= total }),
      chooser("rows of a page", PAGE_SIZES, asked.limit, (size) => again({ limit: size })),
    );
  }

  return panel;
}

// The component table of MindStudio's group Component: peaks from 100 MB on.
function componentsPanel(root) {
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

// Static graphs: Size and Total Size by node, and the operators placed.
function graphsPanel(root) {
  let graph = null;
  const graphs = new Panel(root, {
    id: "static-graphs",
    title: "Static graph",
    reads: ["rank"],
    asks: () => [[session.of("static_graphs"), { rank: session.chosen()?.rank ?? 0 }]],
    empty: "The recording of this rank has no static graph.",
    show: (answer) => {
      graphs.drawn = answer.rows();
      detail.element.hidden = false;
      graph = graphs.drawn.some((row) => row.graph_id === graph) ? graph : graphs.drawn[0].graph_id;
      places.replaceChildren(
        "Graph ID ",
        chooser("Graph ID", graphs.drawn.map((row) => [row.graph_id, `${row.graph_id} ${row.model ?? ""}`]), graph, (id) => {
          graph = id;
          detail.refresh();
        }),
      );
      detail.refresh();
    },
  });
  const places = el("div", { class: "tools" });
  graphs.body.append(places);
  let nodes = [];
  const detail = new Panel(root, {
    id: "static-graph",
    title: "Size by node",
    reads: [],
    asks: () => {
      const of = { rank: session.chosen()?.rank ?? 0, graph };
      return graph === null ? "" : [[session.of("static_curve"), of], [session.of("static_operators"), of]];
    },
    show: (curve, operators) => {
      nodes = curve.rows();
      detail.drawn = { nodes, operators: operators.rows() };
      const times = nodes.map((row) => row.node * 1e6);
      const total = nodes[0]?.total_size_mb ?? null;
      const lines = [{ name: "Size", colour: coloursOf(["Size"])[0], times, values: nodes.map((row) => row.size_mb * 2 ** 20) }];
      if (total !== null) lines.push({ name: "Total Size", colour: coloursOf(["a", "b"])[1], times, values: times.map(() => total * 2 ** 20) });
      const peak = Math.max(0, ...nodes.map((row) => row.size_mb));
      detail.note(`Size at most ${decimal(peak, 2)} MB${total === null ? "" : `, Total Size ${decimal(total, 2)} MB`}`);
      plot.set({ lines, from: 0, to: Math.max(1, times.at(-1) ?? 1) });
      table.set(operators.rows());
    },
    table: () => ({ columns: ["Node Index", "Size(MB)", "Total Size(MB)"], rows: nodes.map((row) => [row.node, decimal(row.size_mb), decimal(row.total_size_mb)]) }),
  });
  detail.element.hidden = true;
  const whole = () => [0, Math.max(1, (nodes.at(-1)?.node ?? 1) * 1e6)];
  const plot = new CurvePlot(detail.body, {
    height: 180,
    label: "memory taken at each node of the static graph",
    range: whole,
    limits: whole,
    hover: (at, x, y) => tip.showAt(plot.surface, x, y, [`node ${Math.round(at / 1e6)}`]),
    leave: tip.hide,
  });
  const table = new Table(detail.body, {
    columns: [
      { name: "operator", title: "Op Name", text: (row) => row.operator },
      { name: "node_first", title: "Node Index Start", align: "right", text: (row) => units.count(row.node_first) },
      { name: "node_last", title: "Node Index End", align: "right", text: (row) => (row.node_last === null ? "never" : units.count(row.node_last)) },
      { name: "size", title: "Size(MB)", align: "right", text: (row) => decimal(row.size_bytes / 2 ** 20) },
    ],
    key: (row) => `${row.operator}/${row.node_first}/${row.size_bytes}`,
    label: "operators of the static graph",
  });
  return {
    refresh: () => graphs.refresh(),
    destroy: () => {
      detail.destroy();
      plot.destroy();
      graphs.destroy();
    },
  };
}
