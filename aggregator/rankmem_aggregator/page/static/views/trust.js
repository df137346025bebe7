// Is it all there, and how sure are the times?

import { clocksPanel, deliveryPanel, gapsPanel, missingPanel } from "../panels/trust.js";

export function mount(root) {
  const panels = [missingPanel, gapsPanel, clocksPanel, deliveryPanel].map((make) => make(root));
  for (const panel of panels) panel.refresh();
  return () => panels.forEach((panel) => panel.destroy());
}
