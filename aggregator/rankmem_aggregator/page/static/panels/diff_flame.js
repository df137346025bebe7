// Both sides of a comparison as one flame graph: a box is as wide as what both hold there; orange where B holds more,
// blue where it holds less.

import { ramp } from "../colours.js";
import { chooser } from "../dom.js";
import { FlameGraph } from "../flame.js";
import { Panel, partsOf } from "../panel.js";
import * as session from "../session.js";
import * as sides from "../sides.js";
import * as state from "../state.js";
import * as tip from "../tip.js";
import * as units from "../units.js";

const LEVELS = [["line", "by stack"], ["module", "by module"], ["operator", "by operator"]];
const DARK = "#1b1f24";
const LIGHT = "#ffffff";

const level = () => state.choice("level", LEVELS.map(([name]) => name));

export function diffFlamePanel(root) {
  let [before, after] = [[], []];
  const panel = new Panel(root, {
    id: "diff-flame",
    title: "Where they differ",
    reads: ["a", "b", "level"],
    asks: () => {
      const [a, b] = sides.both();
      return [[session.of("diff_flame"), { a, b, by: level(), device_type: session.job().deviceTypes[0] }]];
    },
    show: (answer) => {
      [before, after] = [[...answer.column("a_bytes")], [...answer.column("b_bytes")]];
      const bytes = before.map((value, i) => value + after[i]);
      panel.drawn = { names: [...answer.column("name")], parents: [...answer.column("parent")], before, after };
      panel.note("a box is as wide as what both hold there; orange: B holds more, blue: less, grey: as much");
      graph.set({ parent: answer.column("parent"), kind: answer.column("kind"), name: answer.column("name"), bytes, blocks: bytes });
    },
    table: () => ({
      columns: ["path's end", "A", "B", "B − A"],
      rows: (panel.drawn?.names ?? []).map((name, i) => [name, units.bytes(before[i]), units.bytes(after[i]), units.signedBytes(after[i] - before[i])]),
    }),
  });
  panel.tools.prepend(chooser("levels", LEVELS, level(), (name) => state.change({ level: name })));
  const graph = new FlameGraph(panel.body, {
    label: "flame graph of both sides",
    hover: (node, x, y) =>
      tip.showAt(graph.surface, x, y, [
        panel.drawn.names[node],
        `A: ${units.bytes(before[node])}`,
        `B: ${units.bytes(after[node])}`,
        `B − A: ${units.signedBytes(after[node] - before[node])}`,
      ]),
    leave: tip.hide,
    pick: (node) => graph.zoom(node === graph.focus ? 0 : node),
    colours: (node) => coloursOf(before[node], after[node]),
  });
  return partsOf(panel, graph);
}

// The colour of a box by the share of both that B has, and one of text that can be read on it.
function coloursOf(a, b) {
  const [red, green, blue] = ramp("difference")[Math.round(1 + (254 * b) / Math.max(1, a + b))];
  const isBright = 0.3 * red + 0.59 * green + 0.11 * blue > 128;
  return [`rgb(${red} ${green} ${blue})`, isBright ? DARK : LIGHT];
}
