// A legend: a button for each series, which hides and shows it. What is hidden stands in the state, so it is in the link.

import { button, el } from "./dom.js";
import { refill } from "./focus.js";
import { swatch } from "./shades.js";
import * as state from "./state.js";

const KEY = "hide";
const NOTHING = "none";
// The process's figure may be many times that of the device's memory, and would press the others flat.
const AT_FIRST = "process";

// The names that are hidden.
export function hidden() {
  const text = state.get(KEY) ?? AT_FIRST;
  return new Set(text === NOTHING ? [] : text.split(",").map(decodeURIComponent));
}

export class Legend {
  constructor(parent) {
    this.element = el("div", { class: "legend", role: "group", "aria-label": "Series; press one to hide or show it" });
    parent.append(this.element);
  }

  // Shows series: [{name, colour, title}].
  set(series) {
    const away = hidden();
    refill(
      this.element,
      ...series.map(({ name, colour, title }) => {
        const one = button("", () => toggle(name), {
          class: "quiet series",
          "aria-pressed": String(!away.has(name)),
          title: title ?? `${name}: hide or show`,
        });
        one.append(swatch(colour), name);
        return one;
      }),
    );
  }
}

function toggle(name) {
  const away = hidden();
  if (!away.delete(name)) away.add(name);
  state.change({ [KEY]: [...away].map(encodeURIComponent).join(",") || NOTHING });
}
