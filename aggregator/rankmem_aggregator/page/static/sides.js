// A side of a comparison as a text of the link, SESSION/RANKS/MOMENT, and the choosers that make one.

import { chooser, el } from "./dom.js";
import * as session from "./session.js";
import * as state from "./state.js";
import * as units from "./units.js";

const MOMENTS = [
  ["job", "the job's peak"],
  ["time", "an instant"],
  ["seq", "after an event"],
  ["step", "the highest of a step"],
  ["made", "allocated in the range"],
  ["kept", "allocated in the range and kept"],
];
const COORDINATES = ["host_name", "dp", "tp", "pp", "cp", "ep"];

// The parts of a side: {session, ranks, moment, value}.
export function read(text) {
  const [id = "", ranks = "all", moment = "peak"] = (text ?? "").split("/");
  const [name, value = ""] = moment.split("=");
  return { session: id, ranks: ranks || "all", moment: name || "peak", value };
}

export function write({ session: id, ranks, moment, value }) {
  return `${id}/${ranks}/${moment}${value === "" ? "" : `=${value}`}`;
}

// The two sides that a view begins with: the chosen rank against the one next below it, else against the same rank.
function first() {
  const job = session.job();
  const chosen = session.chosen();
  const others = job.ranks
    .filter((row) => row.device !== null && row.rank !== chosen?.rank && row.device_type === chosen?.device_type)
    .sort((a, b) => b.peak_bytes - a.peak_bytes);
  const a = chosen ? `/${chosen.rank}/peak` : "/all/peak";
  return [others.length ? `/${others[0].rank}/peak` : a, a];
}

// The two sides of the state, or those that a view begins with.
export function both() {
  const [a, b] = first();
  return [state.get("a") ?? a, state.get("b") ?? b];
}

const ownPeak = (ranks) => (isOne(ranks) ? "its own peak" : "each rank's own peak");
const isOne = (ranks) => /^\d+$/.test(ranks);

// A side in words.
export function words(text) {
  const { session: id, ranks, moment, value } = read(text);
  const who = ranks === "all" ? "all ranks" : isOne(ranks) ? `rank ${ranks}` : `ranks of ${ranks.replace("=", " ")}`;
  const numbers = value.split(":").map(Number);
  const when = {
    peak: `at ${ownPeak(ranks)}`,
    job: "at the job's peak",
    time: `at ${units.time(numbers[0])}`,
    seq: `after event ${units.count(numbers[0])}`,
    step: `at the highest of step ${value}`,
    made: `allocated from ${units.time(numbers[0])} to ${units.time(numbers[1])}`,
    kept: `allocated from ${units.time(numbers[0])} to ${units.time(numbers[1])} and kept`,
  }[moment];
  return `${who} ${when}${id ? ` of session ${id}` : ""}`;
}

// The choosers of a side; `change` gets its new text.
export function choosers(name, text, sessions, change) {
  const side = read(text);
  const set = (parts) => change(write({ ...side, ...parts }));
  const numbers = el("input", {
    "aria-label": `${name}: number of the moment`,
    title: "ns since the session's start, an event's number, a step, or FROM:TO",
    value: side.value,
    size: 16,
    onchange: (event) => set({ value: event.target.value.trim() }),
  });
  numbers.hidden = side.moment === "peak" || side.moment === "job";
  return el(
    "span",
    { class: "tools" },
    el("b", {}, name),
    chooser(`${name}: session`, [["", "this session"], ...sessions], side.session, (id) => set({ session: id })),
    chooser(`${name}: ranks`, rankOptions(), side.ranks, (ranks) => set({ ranks })),
    chooser(`${name}: moment`, [["peak", ownPeak(side.ranks)], ...MOMENTS], side.moment, (moment) => set({ moment, value: firstValue(moment) })),
    numbers,
  );
}

// All ranks, each group of a coordinate, each rank; of thousands of ranks the first and the chosen one.
function rankOptions() {
  const { ranks } = session.job();
  const groups = COORDINATES.flatMap((name) => {
    const values = [...new Set(ranks.map((row) => row[name]).filter((value) => value !== null && value !== undefined))];
    const key = name === "host_name" ? "host" : name;
    return values.length > 1 || name === "host_name" ? values.slice(0, 64).map((value) => [`${key}=${value}`, `${key} ${value}`]) : [];
  });
  const each = [...new Set(ranks.map((row) => row.rank))].slice(0, 512).map((rank) => [String(rank), `rank ${rank}`]);
  return [["all", "all ranks"], ...each, ...groups];
}

function firstValue(moment) {
  const [from, to] = session.range();
  const chosen = session.chosen();
  return {
    peak: "",
    job: "",
    time: String(Math.round(chosen?.peak_ns ?? to)),
    seq: String(chosen?.peak_seq ?? 0),
    step: "0",
    made: `${Math.round(from)}:${Math.round(to)}`,
    kept: `${Math.round(from)}:${Math.round(to)}`,
  }[moment];
}
