// Is the memory of a device fragmented? Its segments at an instant, its fragmentation over time, and its blocks.

import { button, el } from "../dom.js";
import { bindJumps, goTo } from "../jumps.js";
import { allocatorPanel } from "../panels/allocator.js";
import { blockMapPanel } from "../panels/block_map.js";
import { fragmentationPanel, segmentsPanel } from "../panels/segments.js";
import * as session from "../session.js";
import * as state from "../state.js";

export function mount(root) {
  const at = el("input", {
    type: "number",
    "aria-label": "the instant: right after this event",
    title: "the instant: right after this event",
    onchange: () => state.change({ seq: at.value }),
  });
  const show = () => (at.value = state.get("seq") ?? session.chosen()?.peak_seq ?? "");
  const step = (by) => at.value !== "" && state.change({ seq: Number(at.value) + by });
  root.append(
    el(
      "div",
      { class: "tools" },
      el("label", {}, "after event ", at),
      button("‹", () => step(-1), { "aria-label": "the event before" }),
      button("›", () => step(1), { "aria-label": "the next event" }),
      button("peak", () => goTo({ to: "peak" }, "the peak"), { title: "the rank's highest instant (P)" }),
      button("next failure", () => goTo({ to: "oom", seq: state.num("seq") }, "an out-of-memory error"), { title: "the next allocation that failed (O)" }),
    ),
  );
  show();
  const stop = state.listen(show);
  const unbind = bindJumps();
  const parts = [fragmentationPanel(root), segmentsPanel(root), allocatorPanel(root), blockMapPanel(root)];
  for (const part of parts) part.refresh();
  return () => {
    stop();
    unbind();
    for (const part of parts) part.destroy();
  };
}
