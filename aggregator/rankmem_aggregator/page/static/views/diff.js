// What is different between A and B?

import { diffPanel } from "../panels/diff.js";
import { diffBlocksPanel } from "../panels/diff_blocks.js";
import { diffFlamePanel } from "../panels/diff_flame.js";
import { verdictPanel } from "../panels/verdict.js";

export function mount(root) {
  const parts = [diffPanel(root), verdictPanel(root), diffFlamePanel(root), diffBlocksPanel(root)];
  for (const part of parts) part.refresh();
  return () => {
    for (const part of parts) part.destroy();
  };
}
