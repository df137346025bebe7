// Keys that go to a place in the chosen rank's log. The server finds it, exactly.

import * as api from "./api.js";
import { announce, button, el, openDialog } from "./dom.js";
import { setRange } from "./gestures.js";
import * as keys from "./keys.js";
import * as session from "./session.js";
import * as state from "./state.js";
import * as units from "./units.js";

const S = 1e9;

// Binds the keys while a view with an axis of time is shown; returns what ends that.
export function bindJumps() {
  const here = () => ({ seq: state.num("seq") });
  const bound = [
    keys.bind("P", "to the rank's peak", () => goTo({ to: "peak" }, "the peak")),
    keys.bind("N", "to the next peak that is higher", () => goTo({ to: "next_higher", ...here() }, "a higher peak after this one")),
    keys.bind("B", "back to the previous peak that is higher", () => goTo({ to: "previous_higher", ...here() }, "a higher peak before this one")),
    keys.bind("O", "to the next out-of-memory error", () => goTo({ to: "oom", ...here() }, "an out-of-memory error")),
    keys.bind("]", "to the next training step", () => goTo({ to: "next_step", ...here() }, "a step after this one")),
    keys.bind("[", "to the previous training step", () => goTo({ to: "previous_step", ...here() }, "a step before this one")),
    keys.bind("G", "go to a time, an event or a step", openGo),
  ];
  return () => bound.forEach((unbind) => unbind());
}

// Goes to a place that /jump finds. Where the range does not show it, the range moves there; a step is shown whole.
export async function goTo(place, what = "it") {
  const whose = session.chosenParameters();
  if (!whose) return;
  let found;
  try {
    found = (await api.ask(session.of("jump"), { ...whose, ...place })).rows()[0];
  } catch (error) {
    announce([error.message, error.hint].filter(Boolean).join(". "));
    return;
  }
  if (!found) {
    announce(`there is no ${what.replace(/^(the|an?) /, "")} on rank ${whose.rank}`);
    return;
  }
  const changes = { ...whose, seq: found.seq ?? state.get("seq") };
  if (found.step !== null && found.end_ns > found.begin_ns) {
    state.change({ ...changes, from: found.begin_ns, to: found.end_ns });
  } else {
    state.change(changes);
    bringIntoRange(found.time_ns);
  }
  announce(told(found));
}

function told(found) {
  const step = found.step === null ? "" : `step ${found.step}, `;
  return `${step}event ${units.count(found.seq)} at ${units.time(found.time_ns)}: ${units.bytes(found.requested)}`;
}

function bringIntoRange(time) {
  const [from, to] = session.range();
  if (time >= from && time <= to) return;
  setRange(time - (to - from) / 2, time + (to - from) / 2, session.limits(), { within: true });
}

// What a text asks for: `+58.9s`, `1:02.5`, `step 12`, `seq 26080` or a bare number of an event; null: none of these.
function parsePlace(text) {
  const given = text.trim().toLowerCase().replace(/,/g, "");
  let found = given.match(/^step\s*(\d+)$/);
  if (found) return { to: "step", step: Number(found[1]) };
  found = given.match(/^(?:seq|event|#)?\s*(-?\d+)$/);
  if (found) return { to: "here", seq: Number(found[1]) };
  found = given.match(/^\+?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)$/);
  if (found) return { to: "time", at: Math.round((Number(found[1] ?? 0) * 3600 + Number(found[2]) * 60 + Number(found[3])) * S) };
  found = given.match(/^\+?(\d+(?:\.\d+)?)\s*(s|ms|us|µs|ns|min|h)$/);
  const unit = { h: 3600 * S, min: 60 * S, s: S, ms: 1e6, us: 1e3, "µs": 1e3, ns: 1 };
  return found ? { to: "time", at: Math.round(Number(found[1]) * unit[found[2]]) } : null;
}

function openGo() {
  const input = el("input", { "aria-label": "where to", placeholder: "+58.9s, step 12, 26080", autofocus: true });
  const fault = el("p", { class: "note", role: "alert" });
  input.addEventListener("keydown", (event) => event.key === "Enter" && go());
  const dialog = openDialog(
    "Go to",
    {},
    el("p", { class: "note" }, "A time since the session's start (+58.9s, 1:02.5), a step (step 12), or an event by its number (26080)."),
    input,
    " ",
    button("go", go),
    button("close", () => dialog.close(), { class: "quiet" }),
    fault,
  );
  input.focus();

  function go() {
    const place = parsePlace(input.value);
    if (!place) {
      fault.textContent = `${input.value || "nothing"} is no time, step or event: write +58.9s, step 12 or 26080`;
      return;
    }
    dialog.close();
    goTo(place, `place ${input.value}`);
  }
}
