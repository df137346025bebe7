// Which job? All sessions, the newest first.

import * as api from "../api.js";
import { Panel } from "../panel.js";
import * as session from "../session.js";
import * as state from "../state.js";
import { Table } from "../table.js";
import * as units from "../units.js";

const COLUMNS = [
  { name: "name", title: "name", text: (row) => row.name ?? units.NOTHING },
  { name: "session_id", title: "session", text: (row) => row.session_id },
  { name: "started", title: "started (UTC)", text: (row) => row.started ?? units.NOTHING },
  { name: "state", title: "state", text: (row) => row.state },
  { name: "duration_ns", title: "duration", align: "right", text: (row) => units.duration(row.duration_ns) },
  { name: "num_ranks", title: "ranks", align: "right", text: (row) => units.count(row.num_ranks) },
  { name: "highest_rank", title: "highest rank", align: "right", text: (row) => units.count(row.highest_rank) },
  { name: "peak", title: "its peak", align: "right", text: (row) => units.bytes(row.peak_requested_bytes) },
  { name: "events", title: "events", align: "right", text: (row) => units.count(row.events) },
  { name: "complete", title: "complete", text: (row) => (row.complete ? "yes" : "no") },
  { name: "source", title: "source", text: (row) => row.source ?? units.NOTHING },
];

// Which of them are listed: a file has its own alone, a list of the database at most the newest 500.
function noteOf(listed, { num_sessions: all, options }) {
  if (!api.isServed()) return "this file holds one session; the database may have others";
  const those = all > listed ? `the newest ${units.count(listed)} of ${units.counted(all, "session")}` : `${units.counted(listed, "session")}${listed > 1 ? ", the newest first" : ""}`;
  const command = ["rankmem sessions", options].filter(Boolean).join(" ");
  return all > listed ? `${those}; ${command} lists all` : those;
}

export function mount(root) {
  const panel = new Panel(root, {
    id: "sessions",
    title: "Sessions",
    reads: [],
    asks: () => [["sessions", {}]],
    empty: "There is no session yet. Record one: rankmem run --db FILE -- COMMAND",
    show: (answer) => {
      panel.drawn = answer.rows();
      panel.note(noteOf(answer.length, answer.facts));
      table.set(panel.drawn);
      table.mark(state.get("s"));
    },
  });
  const table = new Table(panel.body, {
    columns: COLUMNS,
    key: (row) => row.session_id,
    label: "sessions",
    onPick: (row) => session.open(row.session_id, { view: "job" }),
  });
  panel.refresh();
  return () => panel.destroy();
}
