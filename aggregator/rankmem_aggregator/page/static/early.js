// What is asked for while the other modules are still on their way: this one needs hardly any, so a browser runs it
// first. It shows the server the code of the link, and asks for the session that the view waits for.

import { isFile } from "./kept.js";
import { FIRST, VIEWS } from "./views/index.js";

export const API = "api/v1/";

const responses = new Map(); // by address, until they are taken

// The response of an address that was asked for early, as a promise, once; null where it was not.
export function taken(address) {
  const response = responses.get(address) ?? null;
  responses.delete(address);
  return response;
}

// The options of a request that sends JSON.
export function posted(body) {
  return { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
}

function ask(address, options, after = Promise.resolve()) {
  const response = after.catch(() => {}).then(() => fetch(address, { credentials: "same-origin", ...options }));
  response.catch(() => {}); // whoever takes it says why there is none
  responses.set(address, response);
  return response;
}

if (!isFile()) {
  const given = new URLSearchParams(location.hash.slice(1));
  const code = given.get("code");
  const view = VIEWS.find(({ name }) => name === (given.get("view") ?? FIRST));
  const session = given.get("s");
  const isIn = code ? ask("code", posted({ code })) : undefined;
  if (view?.needsJob) ask(session ? `${API}s/${encodeURIComponent(session)}/job` : `${API}sessions?limit=1`, {}, isIn);
}
