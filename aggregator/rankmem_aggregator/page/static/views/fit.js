// Will it fit? Room, growth and time to full of each rank, on its own device or on one to try; other sizes, and remedies.

import { fitPanel, fitTablePanel } from "../panels/fit.js";
import { otherSizesPanel, remediesPanel } from "../panels/other_sizes.js";

export function mount(root) {
  const parts = [fitPanel, otherSizesPanel, remediesPanel, fitTablePanel].map((make) => make(root));
  for (const part of parts) part.refresh();
  return () => {
    for (const part of parts) part.destroy();
  };
}
