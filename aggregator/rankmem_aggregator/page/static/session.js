// The session that is shown, as every view needs it: its span of time, and its ranks with their peaks.

import * as api from "./api.js";
import { begin, shown } from "./early.js";
import { CELLS_MAX } from "./facts.js";
import * as state from "./state.js";

let loaded = null;
const listeners = new Set();

// Calls `listener` with the job whenever it was loaded again. Returns what ends that.
export function listen(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

// The job: {id, facts, ranks (rows), first, last, deviceTypes, highest}; null where there is no session.
export function job() {
  return loaded;
}

// Loads the session of the state, or the newest.
export async function load(signal = undefined) {
  let id = state.get("s");
  if (!id) {
    const sessions = (await api.ask("sessions", { limit: 1 }, signal)).rows();
    if (!sessions.length) {
      loaded = null;
      return null;
    }
    id = sessions[0].session_id;
    if (api.isServed()) begin(id, new URLSearchParams(location.hash.slice(1)));
    state.change({ s: id }, { within: true });
  }
  const answer = await api.ask(`s/${encodeURIComponent(id)}/job`, {}, signal);
  if ((state.get("s") ?? id) !== id) return loaded; // another session was chosen meanwhile
  const again = loaded?.id === id;
  loaded = jobOf(id, answer);
  shown.watermark = answer.facts.watermark;
  if (again) for (const listener of [...listeners]) listener(loaded);
  return loaded;
}

// Opens another session: what was chosen in this one means nothing there.
export function open(id, changes = {}) {
  const kept = new Set(["v", "view", "style"]);
  const gone = state.keys().filter((key) => !kept.has(key));
  state.change({ ...Object.fromEntries(gone.map((key) => [key, null])), s: id, ...changes });
}

// A command of rankmem about the session, as a shell reads it.
export function command(verb) {
  return `rankmem ${verb} ${loaded.facts.options}`;
}

// The beginning of a route about the session.
export function of(route) {
  return `s/${encodeURIComponent(loaded.id)}/${route}`;
}

// The range of time that is shown, ns since the session's start.
export function range() {
  return [state.num("from") ?? loaded.first, state.num("to") ?? loaded.last];
}

// How long a cell is while all of a running session is shown: a power of two, so that what is drawn of the
// time that is over stays as it is until the time has doubled. Null otherwise.
export function cellNs() {
  if (loaded.facts.session.state !== "running" || state.num("from") !== null || state.num("to") !== null) return null;
  let cell = 1;
  while (loaded.last - loaded.first >= cell * CELLS_MAX) cell *= 2;
  return cell;
}

// The range that diagrams of cells draw: the one that is shown, up to the end of the last cell.
export function drawnRange() {
  const [from, to] = range();
  const cell = cellNs();
  return cell === null ? [from, to] : [from, from + Math.ceil((to - from + 1) / cell) * cell - 1];
}

export function limits() {
  return [loaded.first, loaded.last];
}

export const NO_EVENTS = "No rank of this session has events. Record one: rankmem run --db FILE -- COMMAND";

// The row of the rank that is chosen: by the state, else the one that stood highest.
export function chosen() {
  const [rank, attempt, device] = [state.num("rank"), state.num("attempt"), state.get("device")];
  if (rank === null) return loaded.highest;
  const fits = loaded.ranks.filter(
    (row) =>
      row.rank === rank &&
      row.device !== null &&
      (attempt === null || row.attempt === attempt) &&
      (device === null || row.device === device),
  );
  return highestOf(fits) ?? { rank, attempt, device, peak_bytes: null, peak_ns: null, peak_seq: null, host_name: null };
}

// The attempts of the session: how often its workers were started again, from 0.
export function attempts() {
  return [...new Set(loaded.ranks.map((row) => row.attempt).filter((each) => each !== null))].sort((a, b) => a - b);
}

// The parameters that name the chosen rank's device in a question.
export function chosenParameters() {
  const row = chosen();
  return row ? { rank: row.rank, attempt: row.attempt, device: row.device } : null;
}

const isHost = (type) => type === "cpu" || type === "pinned";

// The device types of the session, accelerators first.
function deviceTypesOf(ranks) {
  const types = [...new Set(ranks.map((row) => row.device_type).filter(Boolean))];
  return types.sort((a, b) => isHost(a) - isHost(b) || (a < b ? -1 : 1));
}

function highestOf(rows) {
  const accelerators = rows.filter((row) => row.device !== null && !isHost(row.device_type));
  const among = accelerators.length ? accelerators : rows.filter((row) => row.device !== null);
  return among.reduce((best, row) => (best === null || row.peak_bytes > best.peak_bytes ? row : best), null);
}

function jobOf(id, answer) {
  const ranks = answer.rows();
  return {
    id,
    answer,
    facts: answer.facts,
    ranks,
    first: answer.facts.first_ns,
    last: answer.facts.last_ns,
    deviceTypes: deviceTypesOf(ranks),
    highest: highestOf(ranks),
  };
}
