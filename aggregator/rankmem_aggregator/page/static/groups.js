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
  const given = state.get("group");
  if (given) return given;
  const stages = new Set(session.job().ranks.map((row) => row.pp));
  return stages.size > 1 ? "pp" : "job";
}

export function deviceType() {
  return state.get("type") ?? session.job().deviceTypes[0] ?? "cpu";
}

export function figure() {
  return FIGURES.includes(state.get("figure")) ? state.get("figure") : "requested";
}

// The line at so many GiB, in bytes; null where there is none.
export function limitBytes() {
  const gib = Number(state.get("limit") ?? NaN);
  return gib > 0 && gib < 1e6 ? Math.round(gib * 2 ** 30) : null;
}
