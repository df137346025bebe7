// Links to this state with some changes: they follow the state, so that each leads on from what is shown.

import { el } from "./dom.js";
import * as state from "./state.js";

// A link that changes some keys of the state; null removes one.
export function stateLink(changes, properties, ...children) {
  return el("a", { ...properties, href: state.link(changes), "data-state": JSON.stringify(changes) }, ...children);
}

// A figure with its name; `hint`: what it means; `changes`: it is a link to these.
export function tile(name, text, hint = null, changes = null) {
  const parts = [el("span", {}, name), el("b", {}, text)];
  return changes ? stateLink(changes, { class: "tile", title: hint }, ...parts) : el("div", { class: "tile", title: hint }, ...parts);
}

state.listen(() => {
  for (const link of document.querySelectorAll("a[data-state]")) link.href = state.link(JSON.parse(link.dataset.state));
});
