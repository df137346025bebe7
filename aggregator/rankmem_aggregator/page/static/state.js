// The page's one state, which is its link: texts by key, in a fixed order, in the fragment of the address.
// A key that is not known here is kept as it is. Every change is an entry of the browser's history, but for the
// changes within a gesture.

const ORDER = [
  "v", "s", "view", "from", "to", "rank", "attempt", "device", "figure", "by", "seq", "mode", "group", "order",
  "line", "size", "rows", "which", "pick", "q", "sort", "a", "b", "sql", "marks", "type", "of", "steps", "keep", "show", "sum", "hide",
  "actions", "map", "mapx", "mapc", "mapa", "failure", "level", "batch", "length", "style",
];
const LINK_MAX = 2000;
const SHOWN_MAX = 60;

const known = new Map();
const listeners = new Set();
let misread = null; // a Map of sentences by key, while a panel reads

// The text of a key, or null.
export function get(key) {
  return known.get(key) ?? null;
}

// The keys that have a text.
export function keys() {
  return [...known.keys()];
}

// The whole number of a key, or null where there is none.
export function num(key) {
  return read(key, (text) => (/^-?\d{1,16}$/.test(text) ? Number(text) : null), "it is no whole number, and left out");
}

// What `parse` makes of a key's text; null where there is none, or where it is not understood, for which `parse` returns
// null: then `instead` says what is shown.
export function read(key, parse, instead) {
  const text = known.get(key);
  if (text === undefined) return null;
  const value = parse(text);
  if (value === null) misread?.set(key, `${key}=${shortened(text)} is not understood: ${instead}.`);
  return value;
}

// The text of a key where it is one of these options, else the first of them, or `otherwise`.
export function choice(key, options, otherwise = options[0]) {
  const instead = `${otherwise} is shown. Known here: ${options.join(", ")}`;
  return read(key, (text) => (options.includes(text) ? text : null), instead) ?? otherwise;
}

// Runs what reads the state, and collects sentences about values that it did not understand.
export function collecting(sentences, run) {
  const before = misread;
  misread = sentences;
  try {
    return run();
  } finally {
    misread = before;
  }
}

// Changes some keys; null or "" removes one. `within` a gesture, the entry of the history is replaced. Where the link
// would become too long, a statement in it is left out first; if it still is, nothing changes, and false is returned.
export function change(changes, { within = false } = {}) {
  const before = new Map(known);
  const changed = assign(known, changes);
  if (!changed.size) return true;
  if (fragmentOf(known).length > LINK_MAX && known.delete("sql")) changed.add("sql");
  if (fragmentOf(known).length > LINK_MAX) {
    known.clear();
    for (const [key, text] of before) known.set(key, text);
    return false;
  }
  history[within ? "replaceState" : "pushState"](null, "", fragmentOf(known));
  notify(changed);
  return true;
}

// The link of this state with some changes, for an href.
export function link(changes = {}) {
  const other = new Map(known);
  assign(other, changes);
  return fragmentOf(other);
}

// Calls `listener` with the set of changed keys after each change; returns what ends that.
export function listen(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

// Takes over the address's fragment, at the beginning and when the user goes back or edits it.
export function readLink() {
  const before = new Map(known);
  known.clear();
  for (const [key, text] of new URLSearchParams(location.hash.slice(1))) {
    if (text !== "" && key !== "code") known.set(key, text);
  }
  if (!known.has("v")) known.set("v", "1");
  renameOld();
  const keys = new Set([...before.keys(), ...known.keys()]);
  notify(new Set([...keys].filter((key) => before.get(key) !== known.get(key))));
}

addEventListener("popstate", readLink);
addEventListener("hashchange", readLink);

// Older links have one name for a line at so many GiB and for the size of a device to try.
function renameOld() {
  const limit = known.get("limit");
  if (limit === undefined) return;
  known.delete("limit");
  const now = known.get("view") === "fit" ? "size" : "line";
  if (!known.has(now)) known.set(now, limit);
}

function shortened(text) {
  return text.length > SHOWN_MAX ? `${text.slice(0, SHOWN_MAX)}…` : text;
}

function assign(map, changes) {
  const changed = new Set();
  for (const [key, value] of Object.entries(changes)) {
    const text = value === null || value === undefined ? "" : String(value);
    if ((map.get(key) ?? "") === text) continue;
    if (text === "") map.delete(key);
    else map.set(key, text);
    changed.add(key);
  }
  return changed;
}

function fragmentOf(map) {
  const rest = [...map.keys()].filter((key) => !ORDER.includes(key));
  const pairs = [...ORDER, ...rest].filter((key) => map.has(key)).map((key) => [key, map.get(key)]);
  return `#${new URLSearchParams(pairs)}`;
}

function notify(changed) {
  // One that a listener before it has ended is not called any more.
  if (changed.size) for (const listener of [...listeners]) if (listeners.has(listener)) listener(changed);
}
