// Ranks together over time: the whole job, each host, or along a coordinate.

import { lastAtOrBefore } from "../axes.js";
import { coloursOf } from "../colours.js";
import { CurvePlot } from "../curve.js";
import { chooser, el } from "../dom.js";
import { refill } from "../focus.js";
import * as groups from "../groups.js";
import { Panel, partsOf } from "../panel.js";
import * as session from "../session.js";
import { legendEntry } from "../shades.js";
import * as state from "../state.js";
import * as tip from "../tip.js";
import * as units from "../units.js";

const CURVES = 12;
const POINTS = 1000;

export function ranksCurvePanel(root) {
  const by = () => state.choice("sum", groups.groups());
  const legend = el("div", { class: "legend" });
  let lines = [];
  const panel = new Panel(root, {
    id: "ranks_curve",
    title: "Ranks together",
    reads: ["from", "to", "sum", "figure", "type"],
    asks: () => {
      sum.value = by();
      const [from, to] = session.range();
      return [[session.of("ranks_curve"), { by: by(), from, to, figure: groups.figure(), device_type: groups.deviceType(), points: POINTS, curves: CURVES }]];
    },
    empty: "No rank has events with times here, so nothing can be added up.",
    show: (answer) => {
      const [from, to] = session.range();
      lines = linesOf(answer, by());
      panel.drawn = lines;
      panel.note(noteOf(answer.facts, lines.length));
      refill(legend, ...lines.map(({ name, colour }) => legendEntry(name, colour)));
      plot.set({ lines, from, to });
    },
    table: () => ({
      columns: [by(), "highest", "at"],
      rows: lines.map(({ name, values, times }) => {
        const top = values.reduce((best, value, i) => (value > values[best] ? i : best), 0);
        return [name, units.bytes(values[top]), units.time(times[top])];
      }),
    }),
  });
  const sum = chooser("what is added up", groups.groups().map((name) => [name, name === "job" ? "the whole job" : `by ${name}`]), by(), (value) => state.change({ sum: value === "job" ? null : value }));
  panel.tools.prepend(sum);
  panel.body.append(legend);
  const plot = new CurvePlot(panel.body, {
    height: 200,
    label: "memory of ranks together over time",
    range: session.range,
    limits: session.limits,
    hover: (time, x, y) => tip.showAt(plot.surface, x, y, [units.time(time), ...lines.map((line) => `${line.name}: ${units.bytes(line.values[lastAtOrBefore(line.times, time)])}`)]),
    leave: tip.hide,
  });
  return partsOf(panel, plot);
}

function linesOf(answer, by) {
  const names = answer.column("group");
  const [times, values] = [answer.column("time_ns"), answer.column("bytes")];
  const begins = [];
  for (let i = 0; i < answer.length; i += 1) if (!i || names[i] !== names[i - 1]) begins.push(i);
  const colours = coloursOf(begins.map((at) => names[at]));
  return begins.map((begin, i) => {
    const end = begins[i + 1] ?? answer.length;
    const name = ["job", "host"].includes(by) ? names[begin] : `${by} ${names[begin]}`;
    return { name, colour: colours[i], times: times.slice(begin, end), values: values.slice(begin, end) };
  });
}

function noteOf(facts, shown) {
  const many = shown < facts.num_curves ? `the highest ${shown} of ${units.count(facts.num_curves)}; ` : "";
  const how = facts.by_second
    ? "by the second, each rank at its highest of it: a sum may lie above what was reached"
    : facts.exact
      ? "every event is drawn"
      : "the highest of each stretch is drawn";
  return `${units.counted(facts.num_ranks, "rank")} on ${units.counted(facts.num_hosts, "host")}, ${facts.figure} bytes; ${many}${how}`;
}
