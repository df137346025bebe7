// Another batch or length (`rankmem fit`), and remedies (`rankmem whatif`), on the chosen rank.

import { button, chooser, el } from "../dom.js";
import { gibOf } from "../groups.js";
import { insightPanel } from "../insight.js";
import * as session from "../session.js";
import * as state from "../state.js";
import * as units from "../units.js";

const DEVICE = ["rank", "attempt", "device", "size"];
const WHATS = ["batch", "length"];
const bytes = (name) => (row) => units.bytes(row[name]);
const SIZES = [
  { name: "size", title: "size", align: "right", text: (row) => units.count(row.size) },
  { name: "times", title: "of recorded", align: "right", text: (row) => `${Number(row.times.toPrecision(3))}×` },
  { name: "peak", title: "live peak", align: "right", text: bytes("live_peak_bytes") },
  { name: "least", title: "at least", align: "right", text: bytes("low_bytes") },
  { name: "most", title: "at most", align: "right", text: bytes("high_bytes") },
  { name: "needs", title: "needs", align: "right", text: bytes("needed_bytes"), hint: "of the device; not known on a CPU" },
  { name: "reserved", title: "reserved", align: "right", text: bytes("reserved_peak_bytes") },
  { name: "fits", title: "fits", text: (row) => row.fits ?? units.NOTHING, hint: "unclear: the bounds do not decide" },
  { name: "recorded", title: "recorded", text: (row) => (row.is_recorded ? "yes" : "no") },
];
const REMEDIES = [
  { name: "saves", title: "saves", align: "right", text: bytes("saved_bytes") },
  { name: "peak", title: "peak then", align: "right", text: bytes("peak_after_bytes"), hint: "at most, where at least is less" },
  { name: "least", title: "at least", align: "right", text: bytes("peak_after_least_bytes"), hint: "a lower bound: when a checkpoint frees blocks during its forward, and what scratch another optimizer needs, is not recorded" },
  { name: "what", title: "what", text: (row) => row.what },
  { name: "in", title: "in", text: (row) => row.phase_after ?? units.NOTHING, hint: "the phase in which the peak is then" },
  { name: "costs", title: "costs", text: (row) => row.costs },
  { name: "measured", title: "measured", text: (row) => (row.is_measured ? "yes" : "no"), hint: "no: not held against a training with the change" },
  { name: "fits", title: "fits", text: (row) => (row.fits === null ? units.NOTHING : row.fits ? "yes" : "no") },
];

const size = () => gibOf("size", "the recorded device is taken");
const what = () => WHATS.find((name) => state.get(name) !== null) ?? null;

// The chosen rank's device with the size to try, for a question.
function device() {
  const chosen = session.chosenParameters();
  return chosen && { ...chosen, size_gib: size() };
}

export function otherSizesPanel(root) {
  const panel = insightPanel(root, {
    id: "fit-sizes",
    title: "Another batch or length",
    reads: [...DEVICE, ...WHATS],
    asks: () => {
      const chosen = device();
      kind.value = what() ?? WHATS[0];
      sizes.value = what() ? state.get(what()) : "";
      if (!chosen) return "No rank has events.";
      if (!what()) return "Name one or several, such as 64,128 or 2x: what a step of the chosen rank would need then is predicted from its recorded steps.";
      return [[session.of("insight/fit"), { ...chosen, [what()]: state.get(what()) }]];
    },
    columns: SIZES,
  });
  const ask = () => state.change({ batch: null, length: null, [kind.value]: sizes.value.trim() || null });
  const kind = chooser("batch or length", WHATS, WHATS[0], () => sizes.value && ask());
  const sizes = el("input", {
    type: "text", class: "short", placeholder: "2x,4x", "aria-label": "batches or lengths", title: "numbers, or multiples of the largest recorded size such as 2x",
    onchange: ask,
  });
  panel.tools.prepend(kind, sizes, button("predict", ask));
  return panel;
}

export function remediesPanel(root) {
  return insightPanel(root, {
    id: "whatif",
    title: "What would help",
    reads: DEVICE,
    asks: () => {
      const chosen = device();
      return chosen ? [[session.of("insight/whatif"), chosen]] : "No rank has events.";
    },
    columns: REMEDIES,
  });
}
