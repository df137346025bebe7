// Which part of the model holds the memory?

import { modulesPanel, rankNote, weightsPanel } from "../panels/model.js";
import * as state from "../state.js";

export function mount(root) {
  if (state.num("rank") === null) root.append(rankNote());
  const modules = modulesPanel(root, { onPick: (name) => weights.choose(name) });
  const weights = weightsPanel(root);
  modules.refresh();
  weights.refresh();
  return () => {
    modules.destroy();
    weights.destroy();
  };
}
