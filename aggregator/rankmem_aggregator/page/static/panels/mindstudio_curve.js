// MindStudio's curves of a rank; their title has the peaks.

import { CurvePlot } from "../curve.js";
import { coloursOf } from "../colours.js";
import { el } from "../dom.js";
import { Panel } from "../panel.js";
import * as session from "../session.js";
import * as state from "../state.js";
import * as tip from "../tip.js";
import * as units from "../units.js";

const grouping = () => (["overall", "stream", "component"].includes(state.get("by")) ? state.get("by") : "overall");

export function mindstudioCurvePanel(root) {
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
