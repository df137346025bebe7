// What is asked for while the other modules are still on their way: this one needs hardly any, so a browser runs it
// first. It shows the server the code of the link, and asks for the session that the view waits for; and for the heat map
// of all of it, which the first view shows where its link says nothing else.

import { isFile } from "./kept.js";
import { FIRST, VIEWS } from "./views/index.js";

export const API = "api/v1/";

// Rows of the heat map at most, and intervals for so many pixels: windows of nearly one width ask for the same.
export const HEAT_ROWS = 264;
const BINS = 32;
export const binsOf = (px) => Math.max(BINS, Math.min(1024, BINS * Math.round(px / 2 / BINS)));
const ASIDE_PX = 58; // beside the heat map
const OF_HEAT = ["from", "to", "mode", "group", "order", "figure", "line", "type"];

// The state of the session that the page shows; what was asked for early is of that, or asked again.
export const shown = { watermark: "" };

const responses = new Map(); // by address, until they are taken
const wholes = new Map(); // bytes of answers, by path, likewise

// The response of an address that was asked for early, as a promise, once; null where it was not.
export function taken(address) {
  const response = responses.get(address) ?? null;
  responses.delete(address);
  return response;
}

// The answer to a question of which only the path and the size were known, as a promise of its bytes, once; null where it
// was not asked. Whoever takes it looks whether it is theirs.
export function takenWhole(path) {
  const answer = wholes.get(path) ?? null;
  wholes.delete(path);
  return answer;
}

// The options of a request that sends JSON.
export function posted(body) {
  return { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
}

function fetched(address, options, after = Promise.resolve()) {
  const response = after.catch(() => {}).then(() => fetch(address, { credentials: "same-origin", ...options }));
  response.catch(() => {}); // whoever takes it says why there is none
  return response;
}

function ask(address, options, after) {
  responses.set(address, fetched(address, options, after));
  return responses.get(address);
}

// Asks for a session, and with it for the heat map if that is what `given`, the link, shows first.
export function begin(id, given, after = undefined) {
  const session = `s/${encodeURIComponent(id)}`;
  ask(`${API}${session}/job`, {}, after);
  if ((given.get("view") ?? FIRST) !== FIRST || OF_HEAT.some((key) => given.get(key))) return;
  const heat = fetched(`${API}${session}/heat?bins=${binsOf(innerWidth - ASIDE_PX)}&rows=${HEAT_ROWS}`, {}, after);
  const bytes = heat.then((response) => (response.ok ? response.arrayBuffer() : null));
  bytes.catch(() => {});
  wholes.set(`${session}/heat`, bytes);
}

if (!isFile()) {
  const given = new URLSearchParams(location.hash.slice(1));
  const code = given.get("code");
  const view = VIEWS.find(({ name }) => name === (given.get("view") ?? FIRST));
  const isIn = code ? ask("code", posted({ code })) : undefined;
  if (view?.needsJob && given.get("s")) begin(given.get("s"), given, isIn);
  else if (view?.needsJob) ask(`${API}sessions?limit=1`, {}, isIn);
}
