// What is held by one rank: as a flame graph and as a table, at an instant or over a range.

import "../panels/block_detail.js"; // asked for with this view, when a server that ends then still gives it
import { blocksPanel } from "../panels/blocks.js";
import { flamePanel } from "../panels/flame.js";
import { inefficientPanel } from "../panels/inefficient.js";

export function mount(root) {
  const parts = [flamePanel(root), blocksPanel(root), inefficientPanel(root)];
  for (const part of parts) part.refresh();
  return () => {
    for (const part of parts) part.destroy();
  };
}
