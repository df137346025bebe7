// The whole job at a glance: which rank stood how high, and when; which ranks are odd; and what the chosen one is made of.

import { el } from "../dom.js";
import { curvePanel } from "../panels/curve.js";
import { heatPanel } from "../panels/heat.js";
import { oddPanel } from "../panels/odd.js";
import { ranksCurvePanel } from "../panels/ranks_curve.js";
import { tiles } from "../panels/tiles.js";

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
