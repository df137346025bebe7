// Which blocks the panels of blocks mean: those alive after an event, or those of the range; the server's page/lives.py.

import * as session from "./session.js";
import * as state from "./state.js";

// For toggles.
export const WHICH = [
  ["alive", "alive", "after the chosen event, or at the rank's peak"],
  ["made", "made", "allocated within the range"],
  ["freed", "freed", "freed within the range"],
  ["touching", "touching", "alive at any time of the range"],
  ["kept", "kept", "made within the range and not freed by its end: leaks are among these"],
];
// The same at the beginning of a heading.
export const TITLES = { alive: "Held", made: "Made", freed: "Freed", touching: "Alive", kept: "Kept" };
// What blocks are, behind their number.
export const TEXTS = { alive: "alive", made: "made in the range", freed: "freed in the range", touching: "alive in the range", kept: "made in the range and kept" };

export function which() {
  return state.choice("which", WHICH.map(([name]) => name));
}

export function choose(name) {
  state.change({ which: name === "alive" ? null : name });
}

// The parameters that say which blocks are meant; null where no rank has events.
export function parameters() {
  const chosen = session.chosenParameters();
  if (!chosen) return null;
  if (which() === "alive") return { ...chosen, which: "alive", seq: state.num("seq") };
  const [from, to] = session.range();
  return { ...chosen, which: which(), from, to };
}

// The keys of the state that those depend on.
export function reads() {
  return ["rank", "attempt", "device", "which", ...(which() === "alive" ? ["seq"] : ["from", "to"])];
}
