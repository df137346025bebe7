// What is picked: groups, frames, modules and blocks that filter the panels of blocks, as the state's `pick` has them:
// kind:value;kind:value, each value percent-encoded. The server's page/selection.py reads the same.

import { button, el } from "./dom.js";
import { refill } from "./focus.js";
import * as state from "./state.js";

// Of these one alone is picked: another one takes its place.
const ALONE = ["within", "frame", "block"];
const NAMES = { within: "in module", frame: "frame" };

// The picks of the state: [{kind, value}].
export function picks() {
  const read = (text) => (text.split(";").every((part) => part.includes(":")) ? text.split(";") : null);
  return (state.read("pick", read, "nothing is picked") ?? []).map((part) => {
    const colon = part.indexOf(":");
    return { kind: part.slice(0, colon), value: decoded(part.slice(colon + 1)) };
  });
}

// The parameter `pick` of a question, without the kinds that a panel shows by itself.
export function picksBut(...kinds) {
  return textOf(picks().filter(({ kind }) => !kinds.includes(kind)));
}

export function isPicked(kind, value) {
  return picks().some((each) => each.kind === kind && each.value === String(value));
}

// Adds a group to those picked, or takes it away where it is among them.
export function togglePick(kind, value, options = {}) {
  if (isPicked(kind, value)) removePick(kind, value, options);
  else addPick(kind, value, options);
}

export function addPick(kind, value, options = {}) {
  const others = picks().filter((each) => each.kind !== kind || (!ALONE.includes(kind) && each.value !== String(value)));
  state.change({ pick: textOf([...others, { kind, value: String(value) }]) }, options);
}

function removePick(kind, value, options = {}) {
  const others = picks().filter((each) => each.kind !== kind || each.value !== String(value));
  state.change({ pick: textOf(others) }, options);
}

export function removeKind(kind, options = {}) {
  state.change({ pick: textOf(picks().filter((each) => each.kind !== kind)) }, options);
}

// Puts the picks above a panel's body, each with a button that takes it away; returns what ends that.
export function chips(panel, ...hiddenKinds) {
  const bar = el("div", { class: "chips", role: "group", "aria-label": "picked" });
  panel.element.insertBefore(bar, panel.message);
  const draw = () => {
    const shown = picks().filter(({ kind }) => !hiddenKinds.includes(kind));
    bar.hidden = !shown.length;
    refill(
      bar,
      ...shown.map(({ kind, value }) =>
        button(`${NAMES[kind] ?? kind}: ${shortened(value)} ✕`, () => removePick(kind, value), {
          class: "chip",
          title: `${kind}: ${value}`,
          "aria-label": `no longer only ${kind} ${value}`,
        }),
      ),
      shown.length > 1 ? button("all", () => state.change({ pick: null }), { class: "quiet" }) : "",
    );
  };
  draw();
  return state.listen((changed) => changed.has("pick") && draw());
}

function shortened(value) {
  if (value === "") return "none";
  return value.length > 48 ? `…${value.slice(-47)}` : value;
}

function textOf(all) {
  return all.map(({ kind, value }) => `${kind}:${encodeURIComponent(value)}`).join(";");
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
