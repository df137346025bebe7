// What made the job's highest instant, and how sure is it?

import { peakHeldPanel, peakRanksPanel, peakSumPanel } from "../panels/peak.js";

export function mount(root) {
  const parts = [peakSumPanel(root), peakRanksPanel(root), peakHeldPanel(root)];
  for (const part of parts) part.refresh();
  return () => {
    for (const part of parts) part.destroy();
  };
}
