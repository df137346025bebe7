// Did it get worse? What `rankmem diff` says of two sessions, beside the bars.

import { insightPanel } from "../insight.js";
import * as session from "../session.js";
import * as sides from "../sides.js";
import * as units from "../units.js";

const COLUMNS = [
  { name: "what", title: "what", text: (row) => row.what, hint: "peak, held and allocated of a step; then parts of the peak" },
  { name: "rank", title: "rank", align: "right", text: (row) => String(row.rank) },
  { name: "base", title: "A", align: "right", text: (row) => units.bytes(row.base_bytes) },
  { name: "head", title: "B", align: "right", text: (row) => units.bytes(row.head_bytes) },
  { name: "change", title: "change", align: "right", text: (row) => units.signedBytes(row.difference_bytes), copied: (row) => row.difference_bytes },
  { name: "share", title: "share", align: "right", text: (row) => units.share(row.share) },
  { name: "verdict", title: "verdict", text: (row) => row.verdict ?? units.NOTHING },
  { name: "category", title: "category", text: (row) => row.category ?? units.NOTHING },
  { name: "operator", title: "operator", text: (row) => row.operator ?? units.NOTHING },
  { name: "function", title: "function", text: (row) => row.function ?? units.NOTHING },
  { name: "file", title: "file", text: (row) => row.file ?? units.NOTHING },
  { name: "moved_from", title: "moved from", text: (row) => row.moved_from ?? units.NOTHING, hint: "file, function or module in A, where it is another one" },
  { name: "module", title: "module", text: (row) => row.module ?? units.NOTHING },
];

export function verdictPanel(root) {
  return insightPanel(root, {
    id: "diff-verdict",
    title: "Did it get worse, at equal input?",
    reads: ["a", "b"],
    asks: () => {
      const [base, head] = sides.both().map((side) => sides.read(side).session || session.job().id);
      if (base === head) return "Both sides are of one session. Choose another session for A, and its steps are judged against those of B.";
      return [[`s/${encodeURIComponent(head)}/insight/diff`, { base }]];
    },
    columns: COLUMNS,
  });
}
