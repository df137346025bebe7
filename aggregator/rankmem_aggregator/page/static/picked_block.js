// The one block that is picked: its life and its stack, for the panels that mark it though they do not list it. Asked
// once for all.

import * as api from "./api.js";
import { picks } from "./selection.js";
import * as session from "./session.js";
import { OLDER } from "./shades.js";
import * as units from "./units.js";

// Of blocks without a path, as in page/answers/flame.py.
const WITHOUT = { line: "no stack recorded", module: "no module", operator: "no operator" };

let kept = { key: "", row: null };

// The id of the block that is picked; null for none.
export function pickedBlock() {
  const found = picks().find(({ kind }) => kind === "block");
  return found ? Number(found.value) : null;
}

// The row of /blocks of the picked block, whenever it lived on the chosen device; null where none is picked, or the
// device has no such block.
export async function pickedRow() {
  const [block, chosen] = [pickedBlock(), session.chosenParameters()];
  if (block === null || chosen === null) return null;
  const key = JSON.stringify([session.job().id, session.job().facts.watermark, chosen, block]);
  if (kept.key !== key) kept = { key, row: ask(chosen, block) };
  return kept.row;
}

async function ask(chosen, block) {
  try {
    return (await api.ask(session.of("blocks"), { ...chosen, which: "touching", pick: `block:${block}`, limit: 10 })).rows()[0] ?? null;
  } catch {
    return null; // a file holds no such answer; what marks the block does without
  }
}

// The life of a block in a diagram: {block, from, to, text}, ns; null: since before the recording, or to this day.
export function lifeOf(row) {
  if (!row) return null;
  return { block: row.allocation_id, from: row.preexisting ? null : row.allocated_ns, to: row.freed_ns, text: `block ${row.allocation_id}: ${units.bytes(row.size_bytes)}` };
}

// Where the picked block is in a flame graph by line, module or operator: names from the outermost inwards; null where
// none is picked.
export async function pickedPath(by) {
  const row = await pickedRow();
  if (!row) return null;
  const none = [row.preexisting ? OLDER : WITHOUT[by]];
  if (by !== "line") return (row[by] ?? null) === null ? none : by === "module" ? row.module.split(".") : [row.operator];
  const stack = row.forward_stack_id ?? row.stack_id;
  if (stack === null) return none;
  try {
    const frames = (await api.ask(session.of("stack"), { stack_id: stack })).rows();
    return frames.length ? frames.map(frameText).reverse() : none;
  } catch {
    return null; // as in ask()
  }
}

// A row of /stack as the flame graph has it.
export function frameText({ file_path: path, line_number: line, function: name }) {
  return line ? `${path}:${line} ${name}` : name;
}
