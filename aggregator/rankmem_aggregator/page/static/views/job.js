// The whole job at a glance: which rank stood how high, and when; and which ranks are odd.

import { CurvePlot } from "../curve.js";
import { el } from "../dom.js";
import { Panel } from "../panel.js";
import { heatPanel } from "../panels/heat.js";
import { oddPanel } from "../panels/odd.js";
import { ranksCurvePanel } from "../panels/ranks_curve.js";
import { tiles } from "../panels/tiles.js";
import * as session from "../session.js";
import { ink } from "../theme.js";
import * as tip from "../tip.js";
import * as units from "../units.js";

export default {
  name: "job",
  title: "Job",
  needsJob: true,
  mount(root) {
    const parts = [tiles(root), heatPanel(root), curvePanel(root)];
    const below = el("div", { class: "columns2" });
    root.append(below);
    parts.push(oddPanel(below), ranksCurvePanel(below));
    for (const part of parts) part.refresh();
    return () => {
      for (const part of parts) part.destroy();
    };
  },
};

function curvePanel(root) {
  const panel = new Panel(root, {
    id: "curve",
    title: "Rank",
    reads: ["from", "to", "rank", "attempt", "device"],
    asks: () => {
      const [from, to] = session.range();
      const chosen = session.chosenParameters();
      return chosen ? [[session.of("curve"), { ...chosen, from, to }]] : "No rank has events.";
    },
    show: (answer) => {
      const [from, to] = session.range();
      const lines = [{ name: "requested", colour: ink("sel"), times: answer.column("time_ns"), values: answer.column("requested") }];
      panel.drawn = lines;
      const row = session.chosen();
      panel.title(`Rank ${row.rank} · ${row.host_name ?? "unknown host"} · ${row.device}`);
      plot.set({ lines, from, to });
    },
  });
  const plot = new CurvePlot(panel.body, {
    height: 220,
    label: "memory of the chosen rank over time",
    range: session.range,
    limits: session.limits,
    hover: (time, x, y) => tip.showAt(plot.surface, x, y, [units.time(time)]),
    leave: tip.hide,
  });
  return {
    refresh: () => panel.refresh(),
    destroy: () => {
      panel.destroy();
      plot.destroy();
    },
  };
}
