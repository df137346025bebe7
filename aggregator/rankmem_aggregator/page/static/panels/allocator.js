// What a device loses to fragmentation, and which settings of the allocator would give it back, as `rankmem fragmentation`
// says: by replays, so it is asked when its button is pressed.

import { el } from "../dom.js";
import { refill } from "../focus.js";
import { insightPanel } from "../insight.js";
import { tile } from "../links.js";
import * as session from "../session.js";
import * as units from "../units.js";

const bytes = (name) => (row) => units.bytes(row[name]);
export const SETTINGS = { name: "settings", title: "settings", text: (row) => row.settings || "(default)" };
export const NOW = { name: "now", title: "now", text: (row) => (row.is_current ? "yes" : "no"), hint: "the settings of the recorded run" };
export const MEASURED = {
  name: "measured", title: "on devices", text: (row) => (row.is_measured ? "yes" : "no"),
  hint: "no: the model of that setting was checked against PyTorch's own allocator on a simulated device, not on a GPU",
};
const COLUMNS = [
  SETTINGS,
  { name: "needs", title: "needs", align: "right", text: bytes("needed_bytes"), hint: "the smallest device on which the recording runs" },
  { name: "saves", title: "saves", align: "right", text: (row) => units.signedBytes(row.saved_bytes) },
  { name: "reserved_peak", title: "reserved at most", align: "right", text: bytes("reserved_peak_bytes") },
  { name: "reserved", title: "reserved, against now", align: "right", text: (row) => units.signedBytes(row.reserved_change_bytes) },
  NOW,
  MEASURED,
];

export function allocatorPanel(root) {
  const figures = el("div", { class: "tiles" });
  const panel = insightPanel(root, {
    id: "allocator",
    title: "What is lost, and which setting gives it back",
    reads: ["rank", "attempt", "device"],
    asks: () => {
      const chosen = session.chosenParameters();
      return chosen ? [[session.of("insight/fragmentation"), chosen]] : "No rank has events.";
    },
    press: {
      button: "replay",
      text: "Replays the recording of this device under other settings of the allocator, once it was checked to give the recorded addresses: some seconds.",
    },
    columns: COLUMNS,
    told: (insight) => insight.verdict !== "cannot tell" && refill(figures, ...tilesOf(insight.figures)),
  });
  panel.body.prepend(figures);
  return panel;
}

function tilesOf(figures) {
  return [
    tile("needs", units.bytes(figures.needed_bytes), "the smallest device on which the recording runs"),
    tile("in blocks", units.bytes(figures.live_peak_bytes), "alive at once, as the allocator rounds them"),
    tile("stuck", units.bytes(figures.stuck_bytes), "lost to fragmentation: what it needs less what is in blocks"),
    tile("cache", units.bytes(figures.cache_bytes), "reserved beyond what it needs; the allocator gives it back before a request fails"),
    tile("reserved", units.bytes(figures.recorded_reserved_peak_bytes), "at its highest"),
  ];
}
