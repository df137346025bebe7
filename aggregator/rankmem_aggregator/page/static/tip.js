// The one tooltip: lines of text beside the pointer.

import { refill } from "./focus.js";

const tip = () => document.getElementById("tip");

// Shows lines near a point of the window; the first is the heading.
export function show(x, y, lines) {
  const place = tip();
  refill(
    place,
    ...lines
      .filter((line) => line !== null && line !== undefined)
      .map((line, i) => {
        const row = document.createElement(i ? "div" : "b");
        row.textContent = line;
        return row;
      }),
  );
  place.hidden = false;
  const { offsetWidth: width, offsetHeight: height } = place;
  const left = x + 14 + width > innerWidth ? x - 14 - width : x + 14;
  const top = y + 14 + height > innerHeight ? y - 14 - height : y + 14;
  place.style.left = `${Math.max(4, left)}px`;
  place.style.top = `${Math.max(4, top)}px`;
}

// Shows lines beside a point of a surface.
export function showAt(surface, x, y, lines) {
  const place = surface.canvas.getBoundingClientRect();
  show(place.left + x, place.top + y, lines);
}

export function hide() {
  tip().hidden = true;
}
