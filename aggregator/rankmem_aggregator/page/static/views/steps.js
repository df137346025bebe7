// Does it leak? Which lines do, what each step leaves behind on every rank, and what that is.

import { leaksPanel } from "../panels/leaks.js";
import { stepsHeatPanel, stepsKeptPanel } from "../panels/steps.js";
import { stepsTablePanel } from "../panels/step_table.js";

export function mount(root) {
  const parts = [leaksPanel, stepsHeatPanel, stepsKeptPanel, stepsTablePanel].map((make) => make(root));
  for (const part of parts) part.refresh();
  return () => {
    for (const part of parts) part.destroy();
  };
}
