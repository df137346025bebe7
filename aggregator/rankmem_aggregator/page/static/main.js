// The page's frame: lets the browser in, loads the session, shows the view of the state.

import * as api from "./api.js";
import { announce, button, el } from "./dom.js";
import * as kept from "./kept.js";
import * as keys from "./keys.js";
import * as panels from "./panel.js";
import { kindsOf } from "./save.js";
import * as session from "./session.js";
import * as state from "./state.js";
import * as theme from "./theme.js";
import * as tip from "./tip.js";
import { setStyle } from "./units.js";
import { FIRST, VIEWS } from "./views/index.js";

const root = document.getElementById("view");
let unmount = null;
let loading = null;

function viewOfState() {
  return VIEWS.find((view) => view.name === (state.get("view") ?? FIRST)) ?? null;
}

async function show() {
  loading?.abort();
  const mine = (loading = new AbortController());
  document.body.dataset.ready = "false";
  unmount?.();
  unmount = null;
  tip.hide();
  root.replaceChildren();
  const view = viewOfState();
  try {
    if (!view) throw new api.Refusal({ message: `there is no view ${state.get("view")}`, hint: VIEWS.map((each) => each.name).join(", ") });
    if (view.needsJob && (await session.load(mine.signal)) === null) {
      root.append(el("p", { class: "message" }, "There is no session yet. Record one: rankmem run --db FILE -- COMMAND"));
      return;
    }
    if (mine.signal.aborted) return;
    drawHead();
    unmount = view.mount(root);
    document.title = titleOf(view);
  } catch (error) {
    if (error.name === "AbortError") return;
    drawHead();
    fail(error);
  } finally {
    if (loading === mine) document.body.dataset.ready = "true";
  }
}

function fail(error) {
  root.replaceChildren(
    el(
      "section",
      { class: "card" },
      el(
        "div",
        { class: "message failed" },
        el("p", {}, error.message),
        error.hint ? el("p", { class: "hint" }, `Try: ${error.hint}`) : "",
        button("again", show),
      ),
    ),
  );
  announce(error.message);
}

function titleOf(view) {
  const name = session.job()?.facts.session.name ?? session.job()?.id;
  return [view.title, name, "rankmem"].filter(Boolean).join(" · ");
}

function drawHead() {
  const job = session.job();
  const current = viewOfState();
  const links = VIEWS.map((view) =>
    el("a", { href: state.link({ view: view.name }), "aria-current": view === current ? "page" : null }, view.title),
  );
  document.getElementById("head").replaceChildren(
    el("a", { class: "logo", href: state.link({ view: null }) }, "rankmem"),
    job ? el("span", { class: "note" }, `${job.facts.session.name ?? job.id} · ${job.facts.session.state}`) : "",
    el("nav", { "aria-label": "Views" }, ...links),
    el("span", { class: "grow" }),
    button(`theme: ${theme.theme()}`, (event) => (event.target.textContent = `theme: ${theme.nextTheme()}`)),
    button("?", keys.showKeys, { "aria-label": "Keys" }),
  );
}

function fileText({ written, holds, missing, rankmem }) {
  const lacks = missing.length ? ` Not exact: ${missing.join("; ")}.` : "";
  return `A page in one file, written ${written.slice(0, 10)} by rankmem ${rankmem}. It holds ${holds}.${lacks}`;
}

// The view is built anew for another view, session or style; its panels follow all else by themselves.
function follow(changed) {
  if (changed.has("style")) setStyle(state.get("style"));
  if (["view", "s", "style"].some((key) => changed.has(key))) show();
  else drawHead();
}
keys.bind("?", "this list", keys.showKeys);

async function begin() {
  theme.apply();
  if (kept.isFile()) document.getElementById("foot").textContent = fileText(kept.file());
  if (kept.isFile() && location.hash.length < 2) history.replaceState(null, "", `#${new URLSearchParams(kept.file().state)}`);
  const given = new URLSearchParams(location.hash.slice(1));
  const code = given.get("code");
  if (code) {
    given.delete("code");
    history.replaceState(null, "", `#${given}`);
    try {
      await api.showCode(code);
    } catch (error) {
      fail(error);
      document.body.dataset.ready = "true";
      return;
    }
  }
  state.read();
  setStyle(state.get("style"));
  await show();
  state.listen(follow);
}

// For tests and for the console of a browser.
window.rankmem = { drawn: panels.drawn, panel: panels.panel, panels: panels.allPanels, state, traffic: api.traffic, views: VIEWS.map(({ name, needsJob }) => ({ name, needsJob })), kindsOf, keyOf: kept.isFile() ? kept.keyOf : null };

begin();
