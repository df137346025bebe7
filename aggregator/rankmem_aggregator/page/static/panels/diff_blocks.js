// The blocks that only one of two sides holds: those of which the other has none, or fewer, that are alike.

import { Panel } from "../panel.js";
import * as session from "../session.js";
import * as sides from "../sides.js";
import { Table } from "../table.js";
import * as units from "../units.js";

const NONE = "none";

const COLUMNS = [
  { name: "operator", title: "operator", text: (row) => row.operator ?? NONE },
  { name: "line", title: "line", isPath: true, text: (row) => row.line ?? units.NOTHING },
  { name: "category", title: "category", text: (row) => row.category ?? NONE },
  { name: "size_bytes", title: "size of each", align: "right", text: (row) => units.bytes(row.size_bytes), copied: (row) => row.size_bytes },
  { name: "only_a", title: "only in A", align: "right", text: (row) => (row.only_a ? units.count(row.only_a) : "") },
  { name: "only_b", title: "only in B", align: "right", text: (row) => (row.only_b ? units.count(row.only_b) : "") },
  { name: "difference_bytes", title: "B − A", align: "right", text: (row) => units.signedBytes(row.difference_bytes), copied: (row) => row.difference_bytes },
];

export function diffBlocksPanel(root) {
  const panel = new Panel(root, {
    id: "diff-blocks",
    title: "Blocks only in one",
    reads: ["a", "b"],
    asks: () => {
      const [a, b] = sides.both();
      return [[session.of("diff_blocks"), { a, b, device_type: session.job().deviceTypes[0] }]];
    },
    empty: "Each block of one side has one that is alike on the other.",
    show: (answer) => {
      const { facts } = answer;
      panel.drawn = { rows: answer.rows(), facts };
      const only = (side) => `only in ${side.toUpperCase()}: ${units.counted(facts[`only_${side}_blocks`], "block")}, ${units.bytes(facts[`only_${side}_bytes`])}`;
      const shown = facts.num_kinds > answer.length ? `; of ${units.counted(facts.num_kinds, "kind")} the first ${units.count(answer.length)}` : "";
      panel.note(`${only("a")}; ${only("b")}; alike are blocks of one operator, line, category and size${shown}`);
      table.set(panel.drawn.rows);
    },
  });
  const key = (row) => [row.operator, row.line, row.category, row.size_bytes].join("\t");
  const table = new Table(panel.body, { columns: COLUMNS, key, label: "blocks that only one side holds" });
  return { panel, refresh: () => panel.refresh(), destroy: () => panel.destroy() };
}
