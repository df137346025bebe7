// A rank from the whole of its time down to one event: what it held, what it was made of, which events.

import { bindJumps } from "../jumps.js";
import { curvePanel } from "../panels/curve.js";
import { eventsPanel } from "../panels/events.js";

export default {
  name: "rank",
  title: "Rank",
  needsJob: true,
  mount(root) {
    const parts = [curvePanel(root, { height: 320 }), eventsPanel(root)];
    for (const part of parts) part.refresh();
    const unbind = bindJumps();
    return () => {
      unbind();
      for (const part of parts) part.destroy();
    };
  },
};
