// An answer of /heat as a matrix of cells: {rows, ranks, bins, cells, steps, low, high, mode, from, to}.

import * as session from "./session.js";
import * as units from "./units.js";

// The matrix of an answer, whose rows are in this order; null where the answer is a part that does not go on from the
// matrix that is known.
export function matrixOf(answer, known, order) {
  const [from, to] = session.drawnRange();
  const { facts } = answer;
  const isPart = facts.first_bin > 0;
  if (isPart && (known.rows.length !== answer.length || known.bins < facts.first_bin)) return null;
  const column = (name) => answer.table.getChild(name);
  const cells = new Uint8Array(answer.length * facts.bins);
  const rows = Array.from({ length: answer.length }, (_, i) => {
    if (isPart) cells.set(known.cells.subarray(i * known.bins, i * known.bins + facts.first_bin), i * facts.bins);
    cells.set(column("cells").at(i), i * facts.bins + facts.first_bin);
    const above = column("above").at(i);
    const ranks = [...column("ranks").at(i)];
    return {
      ranks,
      label: ranks.length > 1 ? `${ranks[0]}…${ranks[ranks.length - 1]}` : String(ranks[0]),
      group: groupName(column("group").at(i), order),
      top: column("top_rank").at(i),
      topBytes: column("top_bytes").at(i),
      above: above && isPart ? [...Array.from(known.rows[i].above).slice(0, facts.first_bin / 8), ...above] : above,
      restarts: [...(column("restarts").at(i) ?? [])],
      gaps: [...(column("gaps").at(i) ?? [])],
    };
  });
  if (order !== "host" && rows.every((row) => row.ranks.length > 1)) for (const row of rows) row.label = String(row.ranks[0]);
  const ranks = rows.flatMap((row) => row.ranks);
  if (isPart && String(ranks) !== String(known.ranks)) return null;
  return { rows, ranks, bins: facts.bins, cells, steps: facts.steps, low: facts.low_bytes, high: facts.high_bytes, mode: facts.mode, from, to };
}

// "pp 3", or a host's name.
function groupName(name, by) {
  if (name === null) return ["rank", "peak"].includes(by) ? null : `${by} ${units.NOTHING}`;
  return by === "host" ? name : `${by} ${name}`;
}
