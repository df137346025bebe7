// Which ranks behave differently from their group, and how.

import * as groups from "../groups.js";
import { Panel } from "../panel.js";
import * as session from "../session.js";
import * as state from "../state.js";
import { Table } from "../table.js";
import * as units from "../units.js";

const MEANS = {
  high: "holds more than its group",
  low: "holds less than its group",
  growing: "grows against its group",
  fell: "lost memory that its group kept",
};
const COLUMNS = [
  { name: "rank", title: "rank", align: "right", text: (row) => units.count(row.rank) },
  { name: "reason", title: "reason", text: (row) => row.reason, hint: Object.entries(MEANS).map(([name, text]) => `${name}: ${text}`).join("\n") },
  { name: "off", title: "by", align: "right", text: (row) => units.signedBytes(row.off_bytes), hint: "bytes against the median of its group" },
  { name: "since", title: "since", align: "right", text: (row) => units.time(row.since_ns, 1e8), hint: "from when on it is off by half of that" },
  { name: "times", title: "× usual", align: "right", text: (row) => row.times.toFixed(row.times < 100 ? 1 : 0), hint: "how many times as far off as is usual in its group" },
  { name: "median", title: "group's median", align: "right", text: (row) => units.bytes(row.median_bytes) },
  { name: "group", title: "group", text: (row) => row.group ?? units.NOTHING },
  { name: "host", title: "host", text: (row) => row.host_name ?? units.NOTHING },
];

export function oddPanel(root) {
  const panel = new Panel(root, {
    id: "odd",
    title: "Ranks that stand out",
    reads: ["from", "to", "group", "figure", "type"],
    asks: () => {
      const [from, to] = session.range();
      return [[session.of("odd"), { from, to, group: groups.group(), figure: groups.figure(), device_type: groups.deviceType() }]];
    },
    show: (answer) => {
      const { num_odd: odd, num_ranks: ranks, num_groups: many } = answer.facts;
      if (!answer.length) {
        panel.note("");
        panel.say(`No rank stands out from the median of its group in this range.${ranks < 3 * many ? " A group needs three ranks for that." : ""}`);
        return;
      }
      const of = groups.group() === "job" ? "the job" : `their ${groups.group()}`;
      panel.drawn = answer.rows();
      panel.note(`${units.count(odd)} of ${units.count(ranks)} against the median of ${of}${odd > answer.length ? `; the first ${answer.length}` : ""}`);
      table.set(panel.drawn);
      mark();
    },
  });
  const table = new Table(panel.body, {
    columns: COLUMNS,
    key: (row) => row.rank,
    label: "ranks that stand out",
    onPick: (row) => state.change({ rank: row.rank, attempt: null, device: null, seq: null }),
  });
  const mark = () => table.mark(session.chosen()?.rank ?? null);
  const stop = state.listen((changed) => changed.has("rank") && mark());
  return {
    panel,
    refresh: () => panel.refresh(),
    destroy: () => {
      stop();
      panel.destroy();
    },
  };
}
