// Marks: ranges and instants that the user names. They are in the link, as NAME@FROM~TO or NAME@TIME, and drawn on every
// diagram with an axis of time.

import { announce, button, el, openDialog } from "./dom.js";
import { refill } from "./focus.js";
import * as session from "./session.js";
import * as state from "./state.js";
import { FONT } from "./surface.js";
import { ink } from "./theme.js";
import * as units from "./units.js";

const MARKS_MAX = 20;
const NAME_MAX = 40;

// The marks of the state: [{name, from, to}]; an instant has to = from.
export function all() {
  const parts = (state.get("marks") ?? "").split(";").map((text) => /^(.+)@(-?\d{1,16})(?:~(-?\d{1,16}))?$/.exec(text));
  const isWhole = parts.every(Boolean) && parts.length <= MARKS_MAX;
  state.read("marks", () => isWhole || null, `marks are shown that are NAME@FROM~TO or NAME@TIME, ${MARKS_MAX} at most`);
  return parts
    .filter(Boolean)
    .slice(0, MARKS_MAX)
    .map(([, name, from, to]) => ({ name: decoded(name), from: Number(from), to: Number(to ?? from) }));
}

// A link that was cut may end within an escape.
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function keep(marks) {
  const text = marks.map(({ name, from, to }) => `${encodeURIComponent(name)}@${from}${to === from ? "" : `~${to}`}`);
  return state.change({ marks: text.join(";") });
}

// Names the range that is shown, or the whole if there is none.
export function add(name) {
  const [from, to] = session.range().map(Math.round);
  const marks = all();
  if (marks.length >= MARKS_MAX) return announce(`${MARKS_MAX} marks are the most that a link holds`);
  const kept = keep([...marks, { name: name.slice(0, NAME_MAX), from, to }]);
  return announce(kept ? `marked ${name}` : "the link has no room for another mark: remove one");
}

export function remove(index) {
  keep(all().filter((_, i) => i !== index));
}

// Draws the marks across a box whose axis goes from `from` to `to`.
export function draw(g, box, from, to) {
  g.save();
  g.font = FONT;
  for (const mark of all()) {
    if (mark.to < from || mark.from > to) continue;
    const x = (ns) => box.x + Math.max(0, Math.min(1, (ns - from) / (to - from))) * box.width;
    const [begin, end] = [x(mark.from), x(mark.to)];
    g.fillStyle = `${ink("sel")}22`;
    g.fillRect(begin, box.y, Math.max(1, end - begin), box.height);
    g.fillStyle = ink("sel");
    g.fillRect(begin, box.y, 1, box.height);
    g.fillRect(end, box.y, 1, box.height);
    g.textAlign = "left";
    g.textBaseline = "top";
    g.fillText(mark.name, begin + 3, box.y + 2);
  }
  g.restore();
}

// Opens the list of marks, with a field for a new one.
export function show() {
  const [from, to] = session.range();
  const name = el("input", { "aria-label": "name of the range", placeholder: "name of the range", maxLength: NAME_MAX });
  const rows = () =>
    all().map((mark, i) =>
      el(
        "tr",
        {},
        el("td", {}, mark.name),
        el("td", {}, mark.from === mark.to ? units.time(mark.from) : `${units.time(mark.from)} to ${units.time(mark.to)}`),
        el(
          "td",
          {},
          button("show", () => state.change({ from: mark.from, to: mark.to === mark.from ? mark.from + 1000 : mark.to })),
          button("remove", () => {
            remove(i);
            refill(body, ...rows());
          }),
        ),
      ),
    );
  const body = el("tbody", {}, ...rows());
  const press = () => {
    if (name.value.trim()) add(name.value.trim());
    name.value = "";
    refill(body, ...rows());
  };
  const dialog = openDialog(
    "Marks",
    {},
    el("p", { class: "note" }, `Names the range that is shown: ${units.time(from)} to ${units.time(to)}. Marks are part of the link.`),
    el("div", { class: "tools" }, name, button("mark", press), button("close", () => dialog.close())),
    el("table", {}, body),
  );
}
