// Does it leak? The lines that hold ever more, as `rankmem leaks` says.

import { insightPanel } from "../insight.js";
import * as session from "../session.js";
import * as state from "../state.js";
import * as units from "../units.js";

const VERDICTS = "leaks; grows: it may be no leak, as after fewer than 60 steps a cache that fills; negligible: less than 1 MiB in 10,000 steps; cache: it grows only in steps whose input has a size that none before had; input: each step makes it anew, as large as its input needs; model: gradients or state of the optimizer, no more than the parameters explain; stopped: it grew and no longer does so";
const COLUMNS = [
  { name: "verdict", title: "verdict", hint: VERDICTS, text: (row) => row.verdict },
  { name: "line", title: "line", isPath: true, text: (row) => row.line ?? units.NOTHING },
  { name: "operator", title: "operator", text: (row) => row.operator ?? units.NOTHING },
  { name: "per_step", title: "bytes a step", align: "right", text: rateText, copied: (row) => row.bytes_per_step },
  { name: "since", title: "since step", align: "right", text: (row) => units.count(row.since_step) },
  { name: "held", title: "held now", align: "right", text: (row) => units.bytes(row.held_bytes), copied: (row) => row.held_bytes },
  { name: "rank", title: "on rank", align: "right", text: (row) => String(row.rank), hint: "the rank on which it grows fastest" },
  { name: "ranks", title: "ranks", align: "right", text: (row) => units.count(row.num_ranks) },
  { name: "module", title: "module", text: (row) => row.module ?? units.NOTHING },
];

// The rate with the ends of its interval, where these differ.
function rateText({ bytes_per_step: rate, low_bytes_per_step: low, high_bytes_per_step: high }) {
  if (rate === null) return units.NOTHING;
  return low === high ? units.bytes(rate) : `${units.bytes(rate)} (${units.bytes(low)} to ${units.bytes(high)})`;
}

export function leaksPanel(root) {
  return insightPanel(root, {
    id: "leaks",
    title: "What leaks, by line",
    reads: [],
    asks: () => [[session.of("insight/leaks"), {}]],
    columns: COLUMNS,
    follows: true,
    onPick: (row) => state.change({ rank: row.rank, attempt: row.attempt, device: row.device, by: "line", seq: null }),
  });
}
