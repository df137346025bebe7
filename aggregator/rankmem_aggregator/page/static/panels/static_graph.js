// Static graphs: Size and Total Size by node, and the operators that they place.

import { CurvePlot } from "../curve.js";
import { coloursOf } from "../colours.js";
import { chooser, el } from "../dom.js";
import { refill } from "../focus.js";
import { Panel } from "../panel.js";
import * as session from "../session.js";
import { Table } from "../table.js";
import * as tip from "../tip.js";
import * as units from "../units.js";

const decimal = (value, digits = 3) => (value === null || value === undefined ? units.NOTHING : value.toFixed(digits));

export function staticGraphPanel(root) {
  let graph = null;
  const graphs = new Panel(root, {
    id: "static-graphs",
    title: "Static graph",
    reads: ["rank"],
    asks: () => [[session.of("static_graphs"), { rank: session.chosen()?.rank ?? 0 }]],
    show: (answer) => {
      graphs.drawn = answer.rows();
      detail.element.hidden = !answer.length;
      if (!answer.length) {
        graph = null;
        graphs.say("The recording of this rank has no static graph.");
        return;
      }
      graph = graphs.drawn.some((row) => row.graph_id === graph) ? graph : graphs.drawn[0].graph_id;
      refill(
        places,
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
    isTimed: false,
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
