// The header's choosers: session, host, rank, device and attempt, and a box that finds ranks by what is typed.
// They are made once for a session; each state after that only sets them, so that the state and they agree.

import * as api from "./api.js";
import { announce, el, setOptions } from "./dom.js";
import { indexOf, search } from "./find.js";
import { refill } from "./focus.js";
import * as keys from "./keys.js";
import * as session from "./session.js";
import * as state from "./state.js";
import * as units from "./units.js";

const RANKS_LISTED = 512;
const SESSIONS = 100;

let made = null;

// The elements of the loaded session, set to the state; empty where there is none.
export function choosers() {
  const job = session.job();
  if (!job) return [];
  if (made?.job !== job) made = make(job);
  made.follow();
  return made.elements;
}

function make(job) {
  const index = indexOf(job.ranks);
  const hosts = [...new Set(index.map(({ row }) => row.host_name).filter(Boolean))];
  const select = (label, choose) => el("select", { "aria-label": label, title: label, onchange: (event) => choose(event.target.value) });
  const sessions = select("session", (id) => session.open(id));
  const host = select("host", (name) => chooseRank(highestOf(index.filter(({ row }) => row.host_name === name))));
  const rank = select("rank", (number) => state.change({ ...NO_RANK, rank: number }));
  const device = select("device", (name) => state.change({ rank: session.chosen().rank, device: name, seq: null }));
  const attempt = select("attempt", (number) => state.change({ rank: session.chosen().rank, attempt: number, device: null, seq: null }));
  const box = finder(index);
  listSessions(sessions, job);
  setOptions(host, hosts.map((name) => [name, name]), null);
  let listed = null;

  function follow() {
    const chosen = session.chosen();
    const mine = chosen?.host_name ?? null;
    if (mine !== listed || !rank.options.length) {
      listed = mine;
      setOptions(rank, ranksOf(index, mine).map((number) => [String(number), `rank ${number}`]), null);
    }
    host.hidden = hosts.length < 2;
    if (mine !== null) host.value = mine;
    if (chosen) setRank(rank, chosen.rank);
    const rows = job.ranks.filter((row) => row.rank === chosen?.rank && row.device !== null);
    const attempts = [...new Set(rows.map((row) => String(row.attempt)))];
    setOptions(attempt, attempts.map((each) => [each, `attempt ${each}`]), chosen ? String(chosen.attempt ?? "") : null);
    attempt.hidden = attempts.length < 2;
    const devices = [...new Set(rows.filter((row) => row.attempt === chosen?.attempt).map((row) => row.device))];
    setOptions(device, devices, chosen?.device ?? null);
    device.hidden = devices.length < 2;
  }
  return { job, follow, elements: [sessions, host, rank, device, attempt, box] };
}

const NO_RANK = { rank: null, attempt: null, device: null, seq: null };

function chooseRank(row) {
  if (row) state.change({ ...NO_RANK, rank: row.rank });
}

// The ranks of a host; without one, all of them, as far as a list can be read.
function ranksOf(index, host) {
  const mine = index.filter(({ row }) => host === null || row.host_name === host).map((each) => each.rank);
  return mine.slice(0, RANKS_LISTED);
}

function setRank(select, rank) {
  const value = String(rank);
  if (![...select.options].some((option) => option.value === value)) select.append(el("option", { value }, `rank ${value}`));
  select.value = value;
}

const highestOf = (index) => index.map((each) => each.row).reduce((best, row) => (best === null || (row.peak_bytes ?? -1) > (best.peak_bytes ?? -1) ? row : best), null);

// The sessions of the database, named; the shown one at once, the others when they have come.
async function listSessions(select, job) {
  const name = (row) => [row.session_id, `${row.name ?? row.session_id} · ${row.state}`];
  setOptions(select, [[job.id, `${job.facts.session.name ?? job.id} · ${job.facts.session.state}`]], job.id);
  try {
    const rows = (await api.ask("sessions", { limit: SESSIONS })).rows();
    if (!rows.some((row) => row.session_id === job.id)) return;
    setOptions(select, rows.map(name), job.id);
  } catch {
    // the one that is shown stays alone in the list
  }
}

// The box that finds ranks.
function finder(index) {
  const list = el("div", { class: "found", role: "listbox", id: "found", "aria-label": "ranks found", hidden: true });
  let rows = [];
  let at = 0;
  const input = el("input", {
    type: "search", class: "find", placeholder: "find 417, node-052, pp=3", title: "a rank, a part of a host's name, a coordinate, or several; / comes here", role: "combobox", "aria-label": "find a rank",
    "aria-controls": "found", "aria-expanded": "false", autocomplete: "off", maxLength: 100,
    oninput: () => look(), onblur: () => setTimeout(close, 150), onfocus: () => look(),
    onkeydown: (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (by) mark(at + by);
      else if (event.key === "Enter") take(rows[at]);
      else if (event.key === "Escape") close();
      else return;
      event.preventDefault();
    },
  });

  function look() {
    const begun = performance.now();
    const { found, count } = search(index, input.value);
    rows = found;
    refill(list, ...found.map(option), ...(count > found.length ? [el("div", { class: "note" }, `and ${units.count(count - found.length)} more`)] : []));
    if (input.value.trim() && !count) refill(list, el("div", { class: "note" }, "no rank, host or coordinate is like that"));
    list.hidden = !list.children.length;
    input.setAttribute("aria-expanded", String(!list.hidden));
    mark(0);
    box.lastMs = performance.now() - begun;
  }

  function option(row) {
    const places = ["pp", "tp", "dp", "cp", "ep"].filter((name) => row[name] !== null).map((name) => `${name} ${row[name]}`);
    const text = [`rank ${row.rank}`, row.host_name, places.join(" "), units.bytes(row.peak_bytes)].filter(Boolean).join(" · ");
    return el("div", { role: "option", id: `found-${row.rank}`, onmousedown: (event) => (event.preventDefault(), take(row)) }, text);
  }

  function mark(to) {
    at = Math.max(0, Math.min(rows.length - 1, to));
    [...list.children].forEach((each, i) => each.role === "option" && each.setAttribute("aria-selected", String(i === at)));
    input.setAttribute("aria-activedescendant", rows[at] ? `found-${rows[at].rank}` : "");
  }

  function take(row) {
    if (!row) return;
    input.value = "";
    close();
    chooseRank(row);
    announce(`rank ${row.rank} is chosen`);
  }

  function close() {
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
  }
  keys.bind("/", "find a rank, a host or a coordinate", () => input.focus());
  const box = el("span", { class: "finder" }, input, list);
  return box;
}
