// Why did it die? The allocations that failed, and for one of them what there was, who held it and what came before.

import { el } from "../dom.js";
import { refill } from "../focus.js";
import { failuresPanel, heldPanel, lastEventsPanel, ranksThenPanel, whyPanel } from "../panels/oom.js";

export function mount(root) {
  let parts = [];
  let shown = "";
  const details = el("div", {});
  const clear = () => {
    for (const part of parts) part.destroy();
    parts = [];
    refill(details);
  };
  const show = (failure, number) => {
    const key = failure ? `${failure.attempt} ${failure.rank} ${failure.device} ${failure.seq} ${number}` : "";
    if (key === shown) return;
    shown = key;
    clear();
    if (!failure) return;
    const why = whyPanel(details, number, (bytes) => held.mark(bytes));
    const sides = el("div", { class: "columns2" });
    details.append(sides);
    const held = heldPanel(sides, failure);
    parts = [why, held, ranksThenPanel(sides, failure), lastEventsPanel(details, failure)];
    for (const part of parts) part.refresh();
  };
  const failures = failuresPanel(root, show);
  details.className = "stack";
  root.append(details);
  failures.refresh();
  return () => {
    clear();
    failures.destroy();
  };
}
