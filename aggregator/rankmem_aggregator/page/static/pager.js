// Turning pages: what is too long for one is shown part by part, with how many there are.

import { button, el } from "./dom.js";
import { refill } from "./focus.js";
import * as units from "./units.js";

// Fills a bar with buttons to the first page, the one before and the next (functions; null: there is none), the text of
// what is shown, and what else belongs there.
export function drawPager(bar, { first, before, next, from, to, total, of = "" }, ...more) {
  const turn = (text, press, title) => button(text, () => press(), { disabled: press === null, title, "aria-label": title });
  refill(
    bar,
    turn("first", first, "first page"),
    turn("before", before, "page before"),
    turn("next", next, "next page"),
    el("span", { class: "note" }, `${units.count(from)} to ${units.count(to)} of ${units.count(total)}${of ? ` ${of}` : ""}`),
    ...more,
  );
}
