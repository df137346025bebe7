// A rank from the whole of its time down to one event: what it held, what it was made of, which events.

import { el } from "../dom.js";
import { bindJumps } from "../jumps.js";
import { beyondPanel } from "../panels/beyond.js";
import { blockMapPanel } from "../panels/block_map.js";
import { curvePanel } from "../panels/curve.js";
import { eventsPanel } from "../panels/events.js";
import { flamePanel } from "../panels/flame.js";

export function mount(root) {
  const parts = [curvePanel(root, { height: 320 }), eventsPanel(root)];
  const held = el("div", { class: "columns2" });
  root.append(held);
  parts.push(flamePanel(held, { asksWhich: true }), blockMapPanel(held), beyondPanel(root));
  for (const part of parts) part.refresh();
  const unbind = bindJumps();
  return () => {
    unbind();
    for (const part of parts) part.destroy();
  };
}
