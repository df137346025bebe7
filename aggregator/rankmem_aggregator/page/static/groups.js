// What ranks can be grouped and ordered by in this session, and which device type and figure the state means.

import * as session from "./session.js";
import * as state from "./state.js";

const COORDINATES = ["dp", "tp", "pp", "cp", "ep"];
export const FIGURES = ["requested", "allocated", "active", "reserved"];

// The groups of the session: job, host where there are several, and the coordinates that its ranks reported.
export function groups() {
  const { ranks } = session.job();
  const several = (name) => new Set(ranks.map((row) => row[name])).size > 1;
  const reported = COORDINATES.filter((name) => ranks.some((row) => row[name] !== null));
  return ["job", ...(several("host_name") ? ["host"] : []), ...reported];
}

// The group whose median counts: of the state, else the pipeline stage where there are several, else the job.
export function group() {
  const stages = new Set(session.job().ranks.map((row) => row.pp));
  return state.choice("group", groups(), stages.size > 1 ? "pp" : "job");
}

export function deviceType() {
  return state.choice("type", session.job().deviceTypes) ?? "cpu";
}

export function figure() {
  return state.choice("figure", FIGURES);
}

// The line at so many GiB, in bytes; null where there is none.
export function lineBytes() {
  const gib = gibOf("line", "no line is drawn");
  return gib === null ? null : Math.round(gib * 2 ** 30);
}

// So many GiB as a key of the state has them; null where there is none.
export function gibOf(key, instead) {
  return state.read(key, (text) => (Number(text) > 0 && Number(text) < 1e6 ? Number(text) : null), instead);
}
