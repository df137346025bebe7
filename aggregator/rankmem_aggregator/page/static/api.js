// Questions to the page's server: Arrow in, columns out. A refusal is an error with a code and a hint.

/* global fl */

import { API, posted, shown, taken, takenWhole } from "./early.js";
import * as kept from "./kept.js";

const OPTIONS = { useBigInt: false, useDate: false, useProxy: false };

export const traffic = { bytes: 0, questions: 0 };

export class Refusal extends Error {
  constructor({ code, message, hint }, status) {
    super(message);
    this.code = code;
    this.hint = hint ?? "";
    this.status = status;
  }
}

class Answer {
  constructor(table) {
    this.table = table;
    const metadata = table.schema.metadata ?? new Map();
    this.facts = JSON.parse(metadata.get("rankmem") ?? "{}");
    // "True", "False", or "None" where it is not known.
    this.complete = metadata.get("complete") ?? null;
    this.missing = JSON.parse(metadata.get("missing") ?? "[]");
  }

  get length() {
    return this.table.numRows;
  }

  // The values of a column: a typed array where it has no NULL, else an array with null.
  column(name) {
    return this.table.getChild(name).toArray();
  }

  has(name) {
    return this.table.schema.fields.some((field) => field.name === name);
  }

  get names() {
    return this.table.schema.fields.map((field) => field.name);
  }

  rows() {
    return this.table.toArray();
  }
}

// Asks a route below /api/v1; null and "" are left out of the parameters. `post` sends them in the body.
export async function ask(path, parameters = {}, signal = undefined, { post = false } = {}) {
  if (kept.isFile()) return read((await kept.answer(path, parameters)) ?? refuse());
  const early = await askedEarly(path, parameters);
  if (early) return early;
  const response = await (post
    ? request(`${API}${path}`, { signal, ...posted(parameters) })
    : request(url(path, parameters), { signal }));
  return read(await response.arrayBuffer());
}

// What was asked for before its parameters were known, if it is the answer to these; else null.
async function askedEarly(path, parameters) {
  const bytes = takenWhole(path);
  if (!bytes) return null;
  try {
    const answer = read(await bytes);
    const { asked, watermark } = answer.facts;
    const is = ([name, value]) => value === null || value === undefined || String(asked[name]) === String(value);
    return watermark === shown.watermark && Object.entries(parameters).every(is) ? answer : null;
  } catch {
    return null; // it is asked again, and that says what is wrong
  }
}

function refuse() {
  const { holds, session } = kept.file();
  throw new Refusal({
    code: "not_found",
    message: `This file does not hold this: it holds ${holds}.`,
    hint: `open the database for the rest: rankmem page --db FILE --session ${session}`,
  });
}

// The address of a route with its parameters.
export function url(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(given.sort(([a], [b]) => (a < b ? -1 : 1)));
  return given.length ? `${API}${path}?${query}` : `${API}${path}`;
}

export function read(buffer) {
  traffic.bytes += buffer.byteLength;
  traffic.questions += 1;
  return new Answer(fl.tableFromIPC(new Uint8Array(buffer), OPTIONS));
}

// An answer's rows in another format, as the server writes them.
export async function exported(kind, path, parameters = {}, options = {}) {
  return file(`export/${kind}/${path}`, parameters, options);
}

// A file of the server.
export async function file(path, parameters = {}, { post = false } = {}) {
  return (await (post ? request(`${API}${path}`, posted(parameters)) : request(url(path, parameters)))).blob();
}

// Whether a server answers; not in a page that is one file.
export function isServed() {
  return !kept.isFile();
}

// A response that is not an error; otherwise a Refusal is thrown.
export async function request(address, options = {}) {
  let response;
  try {
    response = await (taken(address) ?? fetch(address, { credentials: "same-origin", ...options }));
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(
      { code: "unavailable", message: "the page's server does not answer", hint: "start it again, with the command that served it" },
      0,
    );
  }
  if (response.ok) return response;
  let told = {};
  try {
    told = await response.json();
  } catch {
    // not ours: a proxy's
  }
  throw new Refusal({ message: `the server answered ${response.status}`, ...told }, response.status);
}

// Shows the one-time code of the link, or a token ({code} or {token}), which the server exchanges for a cookie.
export async function letIn(given) {
  await request("code", posted(given));
}
