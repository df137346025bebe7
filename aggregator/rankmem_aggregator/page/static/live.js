// A session that runs: how far it is stored, told by the server once a second. While it is followed, what is shown is
// asked for again when the session's watermark has moved, and a range that ends at the newest event moves with it.
// Looking at an earlier range pauses. A stream that is lost is opened again; the watermark then says whether anything
// was missed, so nothing is. No stream is kept while the page is hidden.

import * as api from "./api.js";
import { announce, button, el } from "./dom.js";
import { refill } from "./focus.js";
import * as keys from "./keys.js";
import * as panels from "./panel.js";
import * as session from "./session.js";
import * as state from "./state.js";
import * as units from "./units.js";

const AGAIN_MS = 2000; // after the browser gave up a stream: the server refused it
const SHARE = 3; // asking again takes at most a quarter of the time,
const WAIT_MS = 10000; // but nothing waits for longer
const QUIET_NS = 30e9; // a running session without a newer event for so long is not called live
const TICK_MS = 500;

let source = null;
let of = null;
let told = null; // the last progress, and when it came
let newNs = -Infinity; // since the panels asked, nothing earlier than this was stored
let trouble = null; // why there is no stream, or no answer behind it
let following = true;
let refreshing = false;
let notBefore = 0;
let timer = null;
let sliding = false;

const TITLES = {
  recorded: () => "every rank has ended, and all of it is stored",
  quiet: () => `ranks have not ended, and nothing new of them is stored; ${session.command("status")} says why; `,
};

const dot = el("span", { class: "dot", "aria-hidden": "true" });
const text = el("span", {});
export const badge = button("", toggle, { class: "live", hidden: true });
refill(badge, dot, text);

// Follows this session from now on; null: none.
export function start(id) {
  if (of !== id) {
    of = id;
    told = trouble = null;
    following = isAtEnd();
    connect();
  }
  draw();
}

// For tests: what is known of the stream.
export function status() {
  return { kind: kind(), following, told: told?.progress ?? null, refreshing };
}

function connect() {
  source?.close();
  source = null;
  newNs = -Infinity;
  if (of === null || document.hidden) return;
  source = new EventSource(`api/v1/s/${encodeURIComponent(of)}/live`);
  source.addEventListener("progress", (event) => progressed(JSON.parse(event.data)));
  source.addEventListener("oom", (event) => announce(oomText(JSON.parse(event.data))));
  source.addEventListener("end", () => announce("every rank has ended"));
  source.addEventListener("lost", (event) => lost(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    const mine = source;
    lost({ message: "the page's server does not answer", hint: "it is asked again by itself" });
    if (mine && mine.readyState === EventSource.CLOSED) setTimeout(() => mine === source && reopen(mine), AGAIN_MS);
  });
}

// The server refused the stream; it says why to who asks without one.
async function reopen(mine) {
  try {
    await api.request(`api/v1/s/${encodeURIComponent(of)}/live`, { method: "HEAD" });
  } catch (error) {
    if (mine === source) lost(error);
  }
  if (mine === source) connect();
}

function lost({ message, hint }) {
  trouble = { message, hint };
  draw();
}

function progressed(progress) {
  const was = trouble;
  trouble = null;
  if (!told || was) newNs = -Infinity;
  else if (told.progress.watermark !== progress.watermark) newNs = Math.min(newNs, progress.changed_ns ?? -Infinity);
  told = { progress, at: performance.now() };
  if (was) for (const panel of panels.allPanels()) if (!panel.message.hidden) panel.refresh();
  draw();
  follow();
}

// Asks again for what is shown, if it has changed and is followed.
async function follow() {
  clearTimeout(timer);
  if (!following || refreshing || trouble || !told || !session.job() || session.job().id !== of) return;
  if (told.progress.watermark === session.job().facts.watermark) return;
  const wait = told.progress.ended ? 0 : notBefore - performance.now();
  if (wait > 0) {
    timer = setTimeout(follow, wait);
    return;
  }
  refreshing = true;
  document.body.dataset.following = "true";
  const began = performance.now();
  try {
    const since = newNs;
    newNs = Infinity;
    await session.load();
    const slid = slide();
    const rest = panels.allPanels().filter((panel) => !slid || !(panel.reads.has("from") || panel.reads.has("to")));
    await Promise.all(rest.map((panel) => panel.follow(since)));
  } catch (error) {
    newNs = -Infinity;
    if (error.name !== "AbortError") lost(error);
  } finally {
    refreshing = false;
    delete document.body.dataset.following;
    notBefore = performance.now() + Math.min(WAIT_MS, SHARE * (performance.now() - began));
  }
  follow();
}

// Moves a range that is zoomed to the newest event; false where all of the time is shown.
function slide() {
  const [from, to] = [state.num("from"), state.num("to")];
  const { last } = session.job();
  if (to === null || to >= last) return false;
  sliding = true;
  state.change({ from: from === null ? null : last - (to - from), to: last }, { within: true });
  sliding = false;
  return true;
}

// Whether the range that is shown ends at the newest event that the page knows.
function isAtEnd() {
  const to = state.num("to");
  return to === null || !session.job() || to >= session.job().last;
}

function toggle() {
  if (kind() === "recorded") return;
  following = !following;
  announce(following ? "following the running session" : "paused");
  if (following && !isAtEnd()) slide();
  draw();
  follow();
}

function kind() {
  if (trouble) return "lost";
  if (!told) return "connecting";
  if (told.progress.ended) return "recorded";
  return age() > QUIET_NS ? "quiet" : "live";
}

function age() {
  return (told.progress.lag_ns ?? 0) + (performance.now() - told.at) * 1e6;
}

function draw() {
  const now = kind();
  badge.hidden = of === null;
  badge.dataset.kind = following || now === "lost" || now === "recorded" ? now : "paused";
  text.textContent = textOf(now);
  badge.title = trouble
    ? [trouble.message, trouble.hint].filter(Boolean).join("; ")
    : (TITLES[now]?.() ?? "") + (now === "recorded" ? "" : following ? "pause (F)" : "follow (F)");
}

function textOf(now) {
  if (now === "lost") return "lost, reconnecting";
  if (now === "recorded") return "recorded";
  if (now === "connecting") return "connecting";
  if (!following) return "paused";
  return now === "quiet" ? `silent for ${roughly(age() / 1e9)}` : `live ${(age() / 1e9).toFixed(1)} s`;
}

function roughly(seconds) {
  for (const [unit, size] of [["days", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${Math.floor(seconds)} s`;
}

function oomText({ rank, size_bytes: size }) {
  return `rank ${rank} ran out of memory: ${units.bytes(size)} were asked for`;
}

keys.bind("F", "follow the running session; again: pause", toggle);
state.listen((changed) => {
  if (!sliding && (changed.has("from") || changed.has("to")) && following && !isAtEnd()) {
    following = false;
    draw();
  }
});
document.addEventListener("visibilitychange", connect);
setInterval(() => !badge.hidden && draw(), TICK_MS);
