// The module tree with bytes at the peak, and the parameters of the chosen module.

import { el } from "../dom.js";
import { Panel } from "../panel.js";
import * as session from "../session.js";
import * as state from "../state.js";
import { Table } from "../table.js";
import * as units from "../units.js";

const INDENT = "\u2003";
const OUTSIDE = "outside of modules";

const MODULES = [
  { name: "module", title: "module", text: (row) => `${INDENT.repeat(row.depth ?? 0)}${nameOf(row)}`, hint: "a row's own bytes are those of its blocks; in all has those within it too" },
  { name: "class", title: "class", text: (row) => row.class ?? units.NOTHING },
  { name: "total_bytes", title: "in all", align: "right", text: (row) => units.bytes(row.total_bytes) },
  { name: "own_bytes", title: "its own", align: "right", text: (row) => units.bytes(row.own_bytes) },
  { name: "own_allocations", title: "blocks", align: "right", text: (row) => units.count(row.own_allocations) },
  { name: "num_ranks", title: "ranks", align: "right", text: (row) => units.count(row.num_ranks) },
];
const WEIGHTS = [
  { name: "name", title: "parameter", text: (row) => row.name },
  { name: "shape", title: "shape", text: (row) => row.shape ?? units.NOTHING },
  { name: "dtype", title: "dtype", text: (row) => row.dtype ?? units.NOTHING },
  { name: "size_bytes", title: "size", align: "right", text: (row) => units.bytes(row.size_bytes) },
  { name: "grad_size_bytes", title: "gradient", align: "right", text: (row) => units.bytes(row.grad_size_bytes) },
  { name: "line", title: "made at", isPath: true, text: (row) => row.line ?? units.NOTHING },
  { name: "attempt", title: "attempt", align: "right", text: (row) => units.count(row.attempt), hidden: true },
];

function nameOf(row) {
  if (row.module === null) return OUTSIDE;
  return row.depth ? row.module.split(".").at(-1) : row.module;
}

export function modulesPanel(root, { onPick }) {
  const panel = new Panel(root, {
    id: "modules",
    title: "Modules",
    reads: ["rank"],
    asks: () => [[session.of("modules"), { rank: state.num("rank") }]],
    empty: "No module is known: the recording has none (RANKMEM_DETAIL=full records them; an imported snapshot has none).",
    show: (answer) => {
      const type = session.job().deviceTypes[0];
      panel.drawn = answer.rows().filter((row) => row.device_type === type);
      const whose = state.num("rank") === null ? "all ranks added up, each at its own peak" : `rank ${state.num("rank")} at its peak`;
      panel.note(`${type}, ${whose}`);
      table.set(panel.drawn);
    },
  });
  const table = new Table(panel.body, {
    columns: MODULES,
    key: (row) => row.module ?? OUTSIDE,
    label: "modules",
    onPick: (row) => {
      table.mark(row.module ?? OUTSIDE);
      onPick(row.module);
    },
  });
  return panel;
}

export function weightsPanel(root) {
  let module = null;
  const panel = new Panel(root, {
    id: "weights",
    title: "Parameters",
    reads: ["rank"],
    asks: () => [[session.of("weights"), { rank: session.chosen()?.rank ?? 0, module }]],
    show: (answer) => {
      const { total, total_bytes: bytes, total_grad_bytes: gradients } = answer.facts;
      panel.drawn = { rows: answer.rows(), total, bytes, gradients };
      panel.title(module === null ? "Parameters" : `Parameters of ${module}`);
      panel.note(
        total
          ? `${units.count(total)} of rank ${session.chosen()?.rank}: ${units.bytes(bytes)}, gradients ${units.bytes(gradients)}${answer.length < total ? `; the ${units.count(answer.length)} largest` : ""}`
          : "no parameter is known here: a module without any, or a recording without them",
      );
      table.set(panel.drawn.rows);
    },
  });
  const table = new Table(panel.body, { columns: WEIGHTS, key: (row) => `${row.attempt}/${row.name}`, label: "parameters" });
  panel.choose = (name) => {
    module = name;
    panel.refresh();
  };
  return panel;
}

// A note on top, where the view shows one rank or all.
export function rankNote() {
  return el("p", { class: "note" }, "Choose a rank to see one rank's modules; without one all ranks are added up.");
}
