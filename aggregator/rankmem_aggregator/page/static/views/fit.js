// Will it fit? Room, growth and time to full of each rank, on its own device or on one to try.

import { fitPanel, fitTablePanel } from "../panels/fit.js";

export function mount(root) {
  const parts = [fitPanel(root), fitTablePanel(root)];
  for (const part of parts) part.refresh();
  return () => {
    for (const part of parts) part.destroy();
  };
}
