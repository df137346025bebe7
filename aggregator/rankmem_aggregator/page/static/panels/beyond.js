// Beyond the allocator: what the rank's process held on its device, the allocator and app stacked, and over them as lines the
// whole process, the device, and sampled components.

import { coloursOf } from "../colours.js";
import { CurvePlot } from "../curve.js";
import { el } from "../dom.js";
import { refill } from "../focus.js";
import { Panel, partsOf } from "../panel.js";
import * as session from "../session.js";
import { legendEntry } from "../shades.js";
import * as tip from "../tip.js";
import * as units from "../units.js";

const ORDER = ["device total", "device used", "process", "app", "allocator"];
const COMPONENTS_MAX = 7; // by themselves; Ascend's driver samples some sixty, most of them small

export function beyondPanel(root) {
  let all = [];
  let lines = [];
  const panel = new Panel(root, {
    id: "beyond",
    title: "Beyond the allocator",
    reads: ["rank", "attempt", "device", "from", "to"],
    asks: () => {
      const chosen = session.chosenParameters();
      return chosen ? [[session.of("beyond"), chosen]] : "No rank has events.";
    },
    empty: "The process was not sampled: an imported recording, or a rank that ended within a second.",
    show: (answer) => {
      const [from, to] = session.range();
      const [names, times, values, areParts] = [[...answer.column("name")], answer.column("time_ns"), answer.column("bytes"), answer.column("is_part")];
      all = [...new Set(names)]
        .map((name) => {
          const at = names.flatMap((each, k) => (each === name && values[k] !== null ? [k] : []));
          return { name, isPart: areParts[at[0]], times: at.map((k) => times[k]), values: at.map((k) => values[k]) };
        })
        .filter((line) => line.times.length)
        .sort((a, b) => placeOf(a) - placeOf(b) || highest(b) - highest(a) || (a.name < b.name ? -1 : 1));
      lines = pooled(all);
      const colours = coloursOf(lines.map((line) => line.name));
      lines = lines.map((line, i) => ({ ...line, colour: colours[i] }));
      panel.note("stacked: the allocator, and app, everything else that the process holds");
      refill(legend, ...lines.map((line) => legendEntry(line.name, line.colour)));
      plot.set({ lines: lines.filter((line) => !line.isPart), areas: stackOf(lines.filter((line) => line.isPart)), from, to });
      panel.drawn = { lines, areas: plot.areas?.edges ?? [] };
    },
    table: () => ({ columns: ["what", "samples", "highest", "last"], rows: all.map((line) => [line.name, line.times.length, units.bytes(highest(line)), units.bytes(line.values.at(-1))]) }),
  });
  const legend = el("div", { class: "legend" });
  panel.body.append(legend);
  const plot = new CurvePlot(panel.body, {
    height: 180,
    label: "memory of the rank's process and device over time",
    range: session.range,
    limits: session.limits,
    hover: (time, x, y) => tip.showAt(plot.surface, x, y, [units.time(time), ...lines.map((line) => `${line.name}: ${units.bytes(at(line, time))}`)]),
    leave: tip.hide,
  });
  return partsOf(panel, plot);
}

const placeOf = ({ name }) => (ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.length);
const highest = ({ values }) => values.reduce((most, value) => Math.max(most, value), 0);

// The lines with the smallest of too many components added up as one.
function pooled(lines) {
  const first = lines.findIndex((line) => placeOf(line) === ORDER.length);
  const rest = first < 0 ? [] : lines.slice(first + COMPONENTS_MAX);
  if (rest.length < 2) return lines;
  const changes = rest.flatMap(({ times, values }) => times.map((time, i) => [time, values[i] - (i ? values[i - 1] : 0)]));
  const sums = new Map();
  let sum = 0;
  for (const [time, change] of changes.sort((a, b) => a[0] - b[0])) sums.set(time, (sum += change));
  return [...lines.slice(0, first + COMPONENTS_MAX), { name: `${rest.length} smaller components`, times: [...sums.keys()], values: [...sums.values()] }];
}

// The parts of the process as areas, the allocator at the bottom; null without any.
function stackOf(parts) {
  if (!parts.length) return null;
  const times = [...new Set(parts.flatMap((part) => part.times))].sort((a, b) => a - b);
  // Where a sample does not tell of a part, it is taken for what it was before.
  const layers = [...parts].reverse().map((part) => {
    const told = new Map(part.times.map((time, i) => [time, part.values[i]]));
    let value = 0;
    return { ...part, values: times.map((time) => (value = told.get(time) ?? value)) };
  });
  return { times, layers };
}

function at({ times, values }, time) {
  let found = null;
  for (let i = 0; i < times.length && times[i] <= time; i += 1) found = values[i];
  return found;
}
