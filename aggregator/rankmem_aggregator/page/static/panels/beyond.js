// Beyond the allocator: what the rank's process, sampled components and other processes held on its device.

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

export function beyondPanel(root) {
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
      const [names, times, values] = [[...answer.column("name")], answer.column("time_ns"), answer.column("bytes")];
      const found = [...new Set(names)].sort((a, b) => ORDER.indexOf(a) - ORDER.indexOf(b) || (a < b ? -1 : 1));
      const colours = coloursOf(found);
      lines = found
        .map((name, i) => {
          const at = names.flatMap((each, k) => (each === name && values[k] !== null ? [k] : []));
          return { name, colour: colours[i], times: at.map((k) => times[k]), values: at.map((k) => values[k]) };
        })
        .filter((line) => line.times.length);
      panel.drawn = lines;
      panel.note("app is what the process holds that no allocator of it knows: the context, libraries, NCCL");
      refill(legend, ...lines.map((line) => legendEntry(line.name, line.colour)));
      plot.set({ lines, from, to });
    },
    table: () => ({ columns: ["what", "samples", "highest", "last"], rows: lines.map((line) => [line.name, line.times.length, units.bytes(Math.max(...line.values)), units.bytes(line.values.at(-1))]) }),
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

function at({ times, values }, time) {
  let found = null;
  for (let i = 0; i < times.length && times[i] <= time; i += 1) found = values[i];
  return found;
}
