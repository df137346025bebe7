// The keyboard: each view binds its keys while it is shown, and ? lists them.

import { button, el, openDialog } from "./dom.js";

const bound = new Map();

// Binds a key while its view is shown; returns what ends that. Keys are as KeyboardEvent.key has them.
export function bind(key, does, press) {
  bound.set(key, { does, press });
  return () => {
    if (bound.get(key)?.press === press) bound.delete(key);
  };
}

addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const found = bound.get(event.key) ?? (event.key.length === 1 ? bound.get(event.key.toUpperCase()) : undefined);
  if (!found) return;
  event.preventDefault();
  found.press(event);
});

// Opens the list of keys.
export function showKeys() {
  const rows = [...bound].map(([key, { does }]) => el("tr", {}, el("td", {}, el("kbd", {}, key)), el("td", {}, does)));
  const dialog = openDialog(
    "Keys",
    {},
    el("table", {}, el("tbody", {}, ...rows)),
    el(
      "p",
      { class: "note" },
      "On a diagram: wheel zooms at the pointer, dragging marks a range, shift and dragging moves it, a double click goes back; the arrow keys, + and − do the same. On an axis of addresses as well, with Page Up and Page Down.",
    ),
    button("close", () => dialog.close(), { autofocus: true }),
  );
}
