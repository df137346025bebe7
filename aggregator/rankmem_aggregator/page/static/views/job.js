// The whole job at a glance: which rank stood how high, and when; what to look at first; what the chosen rank is made of;
// which ranks are odd.

import { el } from "../dom.js";
import { bindJumps } from "../jumps.js";
import { blockMapPanel } from "../panels/block_map.js";
import { blocksPanel } from "../panels/blocks.js";
import { curvePanel } from "../panels/curve.js";
import { findingsPanel } from "../panels/findings.js";
import { flamePanel } from "../panels/flame.js";
import { heatPanel } from "../panels/heat.js";
import { oddPanel } from "../panels/odd.js";
import { ranksCurvePanel } from "../panels/ranks_curve.js";
import { tiles } from "../panels/tiles.js";

export function mount(root) {
  const parts = [tiles(root), heatPanel(root), findingsPanel(root), curvePanel(root)];
  const held = el("div", { class: "columns3" });
  const below = el("div", { class: "columns2" });
  root.append(held, below);
  parts.push(flamePanel(held), blockMapPanel(held), blocksPanel(held));
  parts.push(oddPanel(below), ranksCurvePanel(below));
  const unbind = bindJumps();
  for (const part of parts) part.refresh();
  return () => {
    unbind();
    for (const part of parts) part.destroy();
  };
}
