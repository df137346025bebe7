// Answers about a rank's memory as what a diagram draws: lines, a stack of areas, a legend.

import { coloursOf } from "./colours.js";
import { BLOCK_GROUPINGS } from "./facts.js";
import { isDark } from "./theme.js";
import * as state from "./state.js";
import * as units from "./units.js";

export const NO_GROUPS = "overall";
const GROUPINGS = [...BLOCK_GROUPINGS, [NO_GROUPS, "no groups"]];
const MINDSTUDIO_GROUPINGS = [["overall", "Overall"], ["stream", "Stream"], ["component", "Component"]];
// Of each figure: dark on light, light on dark, and whether it is dashed.
const FIGURES = {
  requested: ["#1b1f24", "#e6e9ed", false],
  allocated: ["#00639c", "#56b4e9", false],
  active: ["#007a59", "#2fcf9f", false],
  reserved: ["#a34a00", "#ff9e57", false],
  process: ["#7a4d9e", "#c9a0ea", true],
};
const MB = 2 ** 20;
const NS_PER_MS = 1e6;

// What blocks can be grouped by, for a chooser.
export function groupings() {
  return units.isMindStudio() ? MINDSTUDIO_GROUPINGS : GROUPINGS;
}

// The grouping of the state.
export function grouping() {
  return state.choice("by", groupings().map(([name]) => name));
}

function colourOfFigure(name) {
  const [light, dark] = FIGURES[name];
  return isDark() ? dark : light;
}

// The series of an answer of /curve or /groups.
export function ofAnswer(answer) {
  const { facts } = answer;
  const times = answer.column("time_ns");
  const names = facts.groups ?? [];
  const colours = coloursOf(names);
  const isStacked = names.length > 0;
  const lines = facts.figures.map((name) => ({
    name,
    colour: colourOfFigure(name),
    times,
    values: answer.column(name),
    lows: !isStacked && answer.has(`${name}_low`) ? answer.column(`${name}_low`) : null,
    dashed: FIGURES[name][2],
  }));
  const layers = names.map((name, i) => ({ name, colour: colours[i], values: answer.column(`g${i}`) }));
  const isEvents = facts.drawn === "events";
  const seqs = { times, values: answer.column("seq") };
  return {
    lines,
    areas: isStacked ? { times, layers } : null,
    ends: facts.ended_ns,
    seqs,
    events: isEvents ? eventsOf(answer, times, seqs.values) : null,
    note: noteOf(facts, isStacked),
    heading: "",
    legend: [...lines, ...layers],
    drawn: facts.drawn,
  };
}

// Lines that go on: of those before what begins before `since`, then the newer ones; null where they are not of one kind.
export function joined(before, newer, since) {
  const names = ({ lines }) => lines.map(({ name, lows }) => [name, lows === null]).join();
  if (before?.drawn !== newer.drawn || names(before) !== names(newer)) return null;
  const place = Array.from(before.seqs.times).findIndex((time) => time >= since);
  const both = (a, b) => (a === null ? null : [...Array.from(a).slice(0, place < 0 ? undefined : place), ...b]);
  const times = both(before.seqs.times, newer.seqs.times);
  const of = (name) => newer.events && both(before.events[name], newer.events[name]);
  const seqs = { times, values: both(before.seqs.values, newer.seqs.values) };
  const lines = newer.lines.map((line, i) => ({ ...line, times, values: both(before.lines[i].values, line.values), lows: both(before.lines[i].lows, line.lows) }));
  const events = newer.events && { times, seqs: seqs.values, actions: of("actions"), sizes: of("sizes"), addresses: of("addresses") };
  return { ...newer, lines, seqs, events, legend: lines };
}

function noteOf(facts, isStacked) {
  if (facts.too_many) return "the picked blocks are too many to add up in this range: zoom in for their areas";
  if (facts.coarse) return "the line is the highest of each pixel; the areas are from summaries of each 1,024 events";
  const drawn = isStacked && facts.drawn !== "events" ? "each pixel as it stood highest" : facts.note;
  const differs = facts.difference_bytes ? `; the groups differ from the total by up to ${units.bytes(facts.difference_bytes)}` : "";
  const whose = !facts.picked ? "" : isStacked ? "; the areas are of the picked blocks alone, the lines of all" : "; no picked block was alive here";
  return `${drawn}${differs}${whose}${facts.why ? `; ${facts.why}` : ""}`;
}

function eventsOf(answer, times, seqs) {
  const [actions, sizes, addresses] = ["action", "size_bytes", "address"].map((name) => answer.column(name));
  return { times, seqs, actions, sizes, addresses };
}

// The series of an answer of /mindstudio_curve: a line for each legend, in bytes.
export function ofMindStudio(answer) {
  const [legends, ms, mb] = ["legend", "time_ms", "mb"].map((name) => answer.column(name));
  const byLegend = new Map();
  for (let i = 0; i < legends.length; i += 1) {
    if (!byLegend.has(legends[i])) byLegend.set(legends[i], { name: legends[i], times: [], values: [], lows: null });
    const line = byLegend.get(legends[i]);
    line.times.push(ms[i] * NS_PER_MS);
    line.values.push(mb[i] * MB);
  }
  const lines = [...byLegend.values()];
  const colours = coloursOf(lines.map((line) => line.name));
  lines.forEach((line, i) => (line.colour = colours[i]));
  const peaks = Object.entries(answer.facts.peaks).map(([name, value]) => `${name}: ${value.toFixed(2)} MB`);
  return {
    lines,
    areas: null,
    ends: null,
    seqs: null,
    events: null,
    note: answer.facts.note,
    heading: peaks.length ? `Peak Memory Usage: ${peaks.join(" | ")}` : "no records in this range",
    legend: lines,
  };
}

// The series without those that are hidden.
export function shown(found, away) {
  const layers = found.areas?.layers.filter(({ name }) => !away.has(name)) ?? [];
  return {
    lines: found.lines.filter(({ name }) => !away.has(name)),
    areas: found.areas && { times: found.areas.times, layers },
    ends: found.ends,
    events: found.events,
  };
}

// The rows of an answer of /spans.
export function spansOf(answer) {
  const [kinds, names, depths, begins, ends] = ["kind", "name", "depth", "begin_ns", "end_ns"].map((name) => answer.column(name));
  return Array.from(kinds, (kind, i) => ({ kind, name: names[i], depth: depths[i], begin: begins[i], end: ends[i] }));
}

// What is drawn, as a table: at most so many rows.
export function tableOf(drawn, most = 500) {
  if (!drawn) return { columns: [], rows: [] };
  const { lines, areas } = drawn;
  const times = areas?.times ?? lines[0]?.times ?? [];
  const columns = ["time", ...lines.map((line) => line.name), ...(areas?.layers ?? []).map((layer) => layer.name)];
  const rows = [];
  for (let i = 0; i < times.length && rows.length < most; i += 1) {
    const of = ({ values }) => units.bytes(values[i]);
    rows.push([units.time(times[i], 1000), ...lines.map(of), ...(areas?.layers ?? []).map(of)]);
  }
  return { columns, rows };
}
