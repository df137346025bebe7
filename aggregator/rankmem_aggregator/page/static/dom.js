// Elements made by hand: texts are always text, never markup.

import { refill } from "./focus.js";

// An element with properties and children. `class`, `data-…`, `aria-…` and `role` become attributes, `on…` listeners,
// what else there is properties; children are elements or texts, null is left out.
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class" || name === "role" || name === "for" || name.includes("-")) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// A button with a text.
export function button(text, press, properties = {}) {
  return el("button", { type: "button", onclick: press, ...properties }, text);
}

// A labelled list to choose from; `options` are [value, text] pairs or texts.
export function chooser(label, options, value, choose, properties = {}) {
  const select = el("select", { "aria-label": label, title: label, onchange: () => choose(select.value), ...properties });
  setOptions(select, options, value);
  return select;
}

// Replaces the options of a chooser, and keeps `value` chosen, also one that is not among them.
export function setOptions(select, options, value) {
  const pairs = options.map((option) => (Array.isArray(option) ? option : [option, option]));
  const chosen = value ?? pairs[0]?.[0] ?? "";
  if (chosen !== "" && !pairs.some(([each]) => each === chosen)) pairs.push([chosen, chosen]);
  refill(select, ...pairs.map(([each, text]) => el("option", { value: each }, text)));
  select.value = chosen;
}

// A row of buttons of which one is on; returns the element, whose `set(value)` turns another on.
export function toggles(label, options, value, choose) {
  const group = el("span", { class: "toggles", role: "group", "aria-label": label });
  const buttons = options.map(([each, text, title]) =>
    button(text, () => choose(each), { "data-value": each, title: title ?? null }),
  );
  group.append(...buttons);
  group.set = (chosen) => {
    for (const one of buttons) one.setAttribute("aria-pressed", String(one.dataset.value === chosen));
  };
  group.set(value);
  return group;
}

// Opens a dialog with these children below its heading, and returns it. Closed, it is gone.
export function openDialog(label, properties, ...children) {
  const { heading = label, ...others } = properties;
  const dialog = el("dialog", { "aria-label": label, onclose: () => dialog.remove(), ...others }, el("h2", {}, heading), ...children);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

// Says something to who cannot see the change.
export function announce(text) {
  const place = document.getElementById("announcer");
  place.textContent = text;
}

// Copies a text and says so, or that the browser did not allow it; returns whether it did.
export async function copyText(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    announce("not copied: the browser does not let this page use the clipboard");
    return false;
  }
  announce(`copied ${what}`);
  return true;
}

// Uses a module that is asked for when it is first wanted.
export async function wanted(module, use) {
  let loaded;
  try {
    loaded = await module;
  } catch {
    announce("not done: the page's server did not give what this needs; see that rankmem page runs, and load this page again");
    return;
  }
  use(loaded);
}
