// Opening a frame's line in the user's editor, by a template of an address such as vscode://file/{file}:{line}, which this
// browser keeps. {file} is the path as it was recorded: of a file of the project from the project's root on.

import { button, el, openDialog } from "./dom.js";

const KEY = "rankmem-editor";
// What an address may not be: these run or show something in the page's place.
const REFUSED = ["javascript:", "data:", "blob:", "vbscript:", "about:", "filesystem:"];

export function template() {
  return localStorage.getItem(KEY) ?? "";
}

// Keeps a template; returns whether it can be one.
export function keep(text) {
  if (text && addressOf("a.py:1 f", text) === null) return false;
  localStorage.setItem(KEY, text);
  return true;
}

// The address of a frame "file:line function", or null where there is no template or no file.
function addressOf(frame, pattern = template()) {
  const found = /^(.+):(\d+)(?: |$)/.exec(frame);
  if (!found || !pattern.includes("{file}")) return null;
  const path = found[1].split("/").map(encodeURIComponent).join("/");
  const text = pattern.replaceAll("{file}", path).replaceAll("{line}", found[2]);
  try {
    return REFUSED.includes(new URL(text).protocol) ? null : text;
  } catch {
    return null;
  }
}

// A link that opens a frame, or a button that asks for the template first; null for what is no line of a file.
export function opener(frame, asked = () => {}) {
  if (!/^(.+):(\d+)(?: |$)/.test(frame)) return null;
  const address = addressOf(frame);
  if (address) return el("a", { href: address, class: "quiet", rel: "noreferrer" }, "open in editor");
  return button("open in editor…", () => ask(asked), { class: "quiet" });
}

function ask(asked) {
  const input = el("input", { type: "text", value: template() || "vscode://file/{file}:{line}", size: 48, "aria-label": "address of a line" });
  const wrong = el("p", { class: "note", role: "alert" });
  const done = () => {
    if (!keep(input.value.trim())) {
      wrong.textContent = "Give an address with {file} and {line}, such as vscode://file/{file}:{line}";
      return;
    }
    dialog.close();
    asked();
  };
  const dialog = openDialog(
    "Editor",
    {},
    el("p", {}, "Which address opens a line in your editor? Paths of your project begin at its root: put the folder before {file}."),
    input,
    wrong,
    el("p", { class: "tools" }, button("keep", done), button("cancel", () => dialog.close())),
  );
}
