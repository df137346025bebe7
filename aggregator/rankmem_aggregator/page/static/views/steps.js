// Does it leak? What each step leaves behind, on every rank, and what it is.

import { el } from "../dom.js";
import { stepsGrowthPanel, stepsHeatPanel, stepsKeptPanel } from "../panels/steps.js";
import { stepsTablePanel } from "../panels/step_table.js";

export function mount(root) {
  const columns = el("div", { class: "columns2" });
  const parts = [stepsHeatPanel(root)];
  root.append(columns);
  parts.push(stepsGrowthPanel(columns), stepsKeptPanel(columns), stepsTablePanel(root));
  for (const part of parts) part.refresh();
  return () => {
    for (const part of parts) part.destroy();
  };
}
