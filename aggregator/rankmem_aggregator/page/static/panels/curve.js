// The curve of the chosen rank: its figures as lines, the groups of its blocks as a stack of areas, steps and
// annotations above, the whole of its time below.

import * as api from "../api.js";
import { lastAtOrBefore } from "../axes.js";
import { CurvePlot } from "../curve.js";
import { chooser, el } from "../dom.js";
import { EventTip } from "../event_tip.js";
import * as kept from "../kept.js";
import { Legend, hidden } from "../legend.js";
import { Overview } from "../overview.js";
import { ASK_ALL, Panel } from "../panel.js";
import { lifeOf, pickedRow } from "../picked_block.js";
import { chips, picksBut } from "../selection.js";
import * as series from "../series.js";
import * as session from "../session.js";
import { SpanStrip } from "../spans.js";
import * as state from "../state.js";
import { ink } from "../theme.js";
import * as tip from "../tip.js";
import * as units from "../units.js";

const MARGIN_PX = 72;
const GROUPS_IN_TIP = 8;

// Adds the panel to `root`; returns what refreshes it and takes it down.
export function curvePanel(root, { height = 240 } = {}) {
  return new RankCurve(root, height);
}

class RankCurve {
  constructor(root, height) {
    this.drawn = null;
    this.panel = new Panel(root, {
      id: "curve",
      title: "Rank",
      reads: ["from", "to", "rank", "attempt", "device", "by", "hide"],
      asks: () => this.asks(),
      show: (...answers) => this.show(...answers),
      newer: ([path, parameters], since) => [path, path.endsWith("/curve") && session.cellNs() !== null ? { ...parameters, since } : parameters],
      table: () => series.tableOf(this.drawn),
    });
    const chosen = series.groupings();
    this.chooser = chooser("group by", chosen, series.grouping(), (by) => state.change({ by, hide: null }));
    this.panel.tools.prepend(el("label", { class: "note" }, "by ", this.chooser));
    const { drawnRange: range, limits } = session;
    const leave = () => this.leave();
    this.spans = new SpanStrip(this.panel.body, { range, limits, hover: (span, x, y) => this.tellSpan(span, x, y), leave });
    this.panel.plot = this.plot = new CurvePlot(this.panel.body, {
      height,
      label: "memory of the chosen rank over time",
      range,
      limits,
      hover: (time, x, y) => this.hover(time, x, y),
      leave,
      pick: (time) => this.pick(time),
    });
    this.legend = new Legend(this.panel.body);
    this.overview = new Overview(this.panel.body, { label: "the whole session; drag to choose a range", range, limits });
    this.eventTip = new EventTip();
    this.endChips = units.isMindStudio() ? () => {} : chips(this.panel, "block");
    this.stop = state.listen((changed) => {
      if (changed.has("seq")) this.mark();
      if (changed.has("pick")) this.followPick();
      if (changed.has("from") || changed.has("to")) this.move();
    });
  }

  get px() {
    return Math.max(100, Math.min(4096, Math.round(this.panel.body.clientWidth || root().clientWidth) - MARGIN_PX));
  }

  asks() {
    const chosen = session.chosenParameters();
    if (!chosen) return session.NO_EVENTS;
    const [from, to] = session.drawnRange();
    this.chooser.value = series.grouping();
    const within = { ...chosen, from, to, px: this.columns(to - from + 1) };
    const spans = [session.of("spans"), within];
    const by = series.grouping();
    if (units.isMindStudio()) return [[session.of("mindstudio_curve"), { rank: chosen.rank, from, to, by, px: this.px }], spans];
    this.picked = kept.isFile() ? "" : picksBut("block");
    return [by === series.NO_GROUPS ? [session.of("curve"), within] : [session.of("groups"), { ...within, by, pick: this.picked }], spans];
  }

  // As many columns as there are pixels for; of a running session so that each is a part of a cell, or of whole cells.
  columns(length) {
    const cell = session.cellNs();
    if (cell === null) return this.px;
    let width = cell;
    while (width > 1 && length / (width / 2) <= this.px) width /= 2;
    while (Math.ceil(length / width) > this.px) width *= 2;
    return length % width ? this.px : length / width;
  }

  show(answer, spans) {
    const [from, to] = session.drawnRange();
    const row = session.chosen();
    const whose = `Rank ${row.rank} · ${row.host_name ?? "unknown host"} · ${row.device}`;
    const away = hidden();
    const part = units.isMindStudio() ? series.ofMindStudio(answer) : series.ofAnswer(answer);
    const found = (answer.facts.since_ns ?? null) === null ? part : series.joined(this.found, part, answer.facts.since_ns);
    if (found === null) return ASK_ALL;
    this.found = found;
    this.drawn = series.shown(found, away);
    this.panel.drawn = this.drawn;
    this.panel.title(found.heading ? `${whose} · ${found.heading}` : whose);
    this.panel.note(found.note);
    this.plot.set({ ...this.drawn, from, to });
    this.legend.set(found.legend);
    this.spans.set({ spans: series.spansOf(spans), from, to });
    this.mark();
    this.markBlock();
    this.showWhole();
    return null;
  }

  // The areas are of the picked blocks; one block alone is marked.
  followPick() {
    if (picksBut("block") !== this.picked && !units.isMindStudio() && !kept.isFile()) this.panel.refreshSoon();
    this.markBlock();
  }

  // Marks the life of the block that is picked.
  async markBlock() {
    const mine = (this.markingBlock = {});
    const life = lifeOf(await pickedRow());
    if (this.markingBlock !== mine || !this.drawn) return;
    this.drawn.life = life;
    this.plot.setLife(life);
  }

  // Follows a gesture at once with what is there; the answer comes after it.
  move() {
    const [from, to] = session.drawnRange();
    for (const part of [this.plot, this.spans]) Object.assign(part, { from, to }).surface.draw();
    this.overview.surface.draw();
  }

  // The strip of the whole session: asked once for a rank and a state.
  async showWhole() {
    const whose = JSON.stringify([session.job().id, session.chosenParameters(), this.px]);
    const key = whose + session.job().facts.watermark;
    const { canvas } = this.overview.surface;
    this.overview.surface.draw();
    if (this.wholeKey === key) return;
    Object.assign(this, { wholeOf: whose, wholeKey: key });
    canvas.setAttribute("aria-busy", "true");
    const [from, to] = session.limits();
    try {
      const asked = { ...session.chosenParameters(), from, to, px: Math.min(600, this.px), figures: "requested" };
      const answer = await api.ask(session.of("curve"), asked);
      if (this.wholeOf === whose && answer.has("requested")) this.overview.set(answer.column("time_ns"), answer.column("requested"));
    } catch (error) {
      if (this.wholeKey === key) this.wholeKey = null;
    }
    if (this.wholeKey === key || this.wholeKey === null) canvas.removeAttribute("aria-busy");
  }

  // Marks the chosen instant.
  async mark() {
    const whose = session.chosenParameters();
    const seq = state.num("seq") ?? session.chosen()?.peak_seq;
    if (!whose || seq === null || seq === undefined) return;
    const mine = (this.marking = {});
    const text = state.num("seq") === null ? "peak" : `event ${units.count(seq)}`;
    try {
      const place = (await api.ask(session.of("jump"), { ...whose, to: "here", seq })).rows()[0];
      if (this.marking === mine) this.plot.setMarks(place ? [{ time: place.time_ns, colour: ink("accent"), text }] : []);
    } catch (error) {
      if (this.marking === mine) this.plot.setMarks([]);
    }
  }

  hover(time, x, y) {
    if (!this.drawn) return;
    const { lines, areas, events } = this.drawn;
    const told = [units.time(time, (this.plot.to - this.plot.from) / this.plot.box.width)];
    const i = areas ? lastAtOrBefore(areas.times, time) : -1;
    for (const line of lines) {
      const at = lastAtOrBefore(line.times, time);
      const low = line.lows && at >= 0 && line.lows[at] !== line.values[at] ? ` (down to ${units.bytes(line.lows[at])})` : "";
      if (at >= 0) told.push(`${line.name} ${units.bytes(line.values[at])}${low}`);
    }
    if (i >= 0) {
      const held = areas.layers.map(({ name, values }) => [name, values[i] ?? 0]).filter(([, value]) => value > 0);
      held.sort((a, b) => b[1] - a[1]);
      told.push(...held.slice(0, GROUPS_IN_TIP).map(([name, value]) => `  ${name} ${units.bytes(value)}`));
      if (held.length > GROUPS_IN_TIP) told.push(`  and ${held.length - GROUPS_IN_TIP} more`);
    }
    const event = events && lastAtOrBefore(events.times, time);
    if (events && event >= 0) this.eventTip.show(this.plot.surface, x, y, told, events, event);
    else tip.showAt(this.plot.surface, x, y, told);
  }

  tellSpan(span, x, y) {
    this.plot.leave?.();
    const of = span.kind === "step" ? `step ${span.name}` : span.name;
    tip.showAt(this.spans.surface, x, y, [of, `${units.time(span.begin)}, ${units.duration(span.end - span.begin)}`, "click to see it alone"]);
  }

  leave() {
    this.eventTip.leave();
    tip.hide();
  }

  // The event that is chosen by a click: the one that the row shows, of a pixel its highest.
  pick(time) {
    const { seqs } = this.found;
    if (!seqs) return;
    const i = lastAtOrBefore(seqs.times, time);
    if (i >= 0 && seqs.values[i] !== null) state.change({ seq: seqs.values[i] });
  }

  refresh() {
    return this.panel.refresh();
  }

  destroy() {
    this.stop();
    this.endChips();
    this.leave();
    this.plot.destroy();
    this.spans.destroy();
    this.overview.destroy();
    this.panel.destroy();
  }
}

function root() {
  return document.getElementById("view");
}
