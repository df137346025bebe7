// The job in a line of figures, each a link to the state that it is about.

import * as api from "../api.js";
import { el } from "../dom.js";
import { keepFocus, refill } from "../focus.js";
import * as groups from "../groups.js";
import { tile } from "../links.js";
import * as session from "../session.js";
import * as units from "../units.js";

const HEADROOM = 3; // its place in the line

export function tiles(root) {
  const waiting = new AbortController();
  const line = el("div", { class: "tiles" });
  root.append(line);
  fill(line, waiting.signal);
  const stop = session.listen(() => fill(line, waiting.signal)); // a running session's figures grow
  const destroy = () => {
    stop();
    waiting.abort();
  };
  return { refresh: () => {}, destroy };
}

function fill(line, signal) {
  const { highest, facts, ranks } = session.job();
  const gone = { from: null, to: null };
  const at = highest && { rank: highest.rank, device: highest.device, attempt: highest.attempt, seq: highest.peak_seq, ...gone };
  const before = line.children[HEADROOM]?.lastChild.textContent ?? "…";
  const figure = (name, text, changes) => tile(name, text, null, changes);
  const headroom = figure("least headroom", before, { mode: "headroom" });
  const { complete, events, num_hosts: hosts, world_size: world } = facts.session;
  const recorded = new Set(ranks.map((row) => row.rank)).size;
  refill(
    line,
    figure("highest rank", highest ? `${highest.rank}: ${units.bytes(highest.peak_bytes)}` : units.NOTHING, at),
    figure("at", highest ? units.time(highest.peak_ns) : units.NOTHING, at),
    figure("sum of peaks", sumOfPeaks(ranks, complete), { view: "peak" }),
    headroom,
    figure(`ranks on ${units.counted(hosts, "host")}`, units.count(recorded) + (world > recorded ? ` of ${units.count(world)}` : ""), { order: "host" }),
    figure("events", units.count(events), gone),
    figure("complete", complete ? "yes" : complete === false ? "no" : "not known", { view: "trust" }),
  );
  fillHeadroom(line, signal);
}

// Of each rank the highest of its attempts, on devices of the type that is shown.
function sumOfPeaks(ranks, complete) {
  const rows = ranks.filter((row) => row.is_rank_peak && row.device_type === groups.deviceType());
  if (!rows.length) return units.NOTHING;
  return (complete ? "" : "≥ ") + units.bytes(rows.reduce((sum, row) => sum + row.peak_bytes, 0));
}

async function fillHeadroom(line, signal) {
  const show = (text, changes) => line.children[HEADROOM].replaceWith(tile("least headroom", text, null, changes));
  try {
    const answer = await api.ask(session.of("headroom"), { device_type: groups.deviceType() }, signal);
    const least = answer.rows()[0];
    const whose = least && { mode: "headroom", rank: least.rank, device: least.device, attempt: least.attempt, seq: null };
    keepFocus(line, () => show(least ? `${least.rank}: ${units.bytes(least.headroom_bytes)}` : "not sampled", whose ?? { mode: "headroom" }));
  } catch (error) {
    if (error.name !== "AbortError") show(units.NOTHING, { mode: "headroom" });
  }
}
