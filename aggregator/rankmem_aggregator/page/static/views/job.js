// The whole job at a glance: which rank stood how high, and when.

import { el } from "../dom.js";
import { HeatMap } from "../heat.js";
import { Panel } from "../panel.js";
import { curvePanel } from "../panels/curve.js";
import * as session from "../session.js";
import * as state from "../state.js";
import * as tip from "../tip.js";
import * as units from "../units.js";

export default {
  name: "job",
  title: "Job",
  needsJob: true,
  mount(root) {
    root.append(tiles(session.job()));
    const parts = [heatPanel(root), curvePanel(root)];
    for (const part of parts) part.panel.refresh();
    return () => {
      for (const part of parts) part.destroy();
    };
  },
};

function tiles(job) {
  const { highest, facts } = job;
  const tile = (name, text, changes) =>
    el(changes ? "a" : "div", { class: "tile", href: changes ? state.link(changes) : null }, el("span", {}, name), el("b", {}, text));
  return el(
    "div",
    { class: "tiles" },
    tile("highest rank", highest ? `${highest.rank}: ${units.bytes(highest.peak_bytes)}` : units.NOTHING, highest && { rank: highest.rank, device: highest.device, attempt: highest.attempt, seq: highest.peak_seq }),
    tile("at", highest ? units.time(highest.peak_ns) : units.NOTHING),
    tile("ranks", units.count(new Set(job.ranks.map((row) => row.rank)).size)),
    tile("events", units.count(facts.session.events)),
    tile("complete", facts.session.complete ? "yes" : "no"),
  );
}

function heatPanel(root) {
  let ranks = [];
  const panel = new Panel(root, {
    id: "heat",
    title: "Ranks over time",
    reads: ["from", "to"],
    asks: () => {
      const [from, to] = session.range();
      return [[session.of("heat"), { from, to, bins: 512, device_type: session.job().deviceTypes[0] }]];
    },
    empty: "No rank has events in this range. Double click a diagram to see more of the time.",
    show: (answer) => {
      const [from, to] = session.range();
      ranks = [...answer.column("rank")];
      const lists = answer.table.getChild("cells");
      const bins = lists.at(0).length;
      const cells = new Uint8Array(ranks.length * bins);
      ranks.forEach((_, row) => cells.set(lists.at(row), row * bins));
      const { low_bytes: low, high_bytes: high } = answer.facts;
      panel.drawn = { ranks, bins, cells, low, high };
      panel.note(`${units.count(ranks.length)} ranks, ${units.bytes(low)} (dark) to ${units.bytes(high)} (bright)`);
      plot.set({ rows: ranks.map(String), bins, cells, from, to });
      plot.choose(ranks.indexOf(session.chosen()?.rank));
    },
  });
  const plot = new HeatMap(panel.body, {
    height: 240,
    label: "memory of each rank over time",
    range: session.range,
    limits: session.limits,
    hover: (row, bin, x, y) => tip.showAt(plot.surface, x, y, [`rank ${ranks[row]}`]),
    leave: tip.hide,
    pick: (row) => state.change({ rank: ranks[row], attempt: null, device: null, seq: null }),
  });
  const destroy = () => (panel.destroy(), plot.destroy());
  return { panel, plot, destroy };
}
