// The page's frame: lets the browser in, loads the session, shows the view of the state.

import * as api from "./api.js";
import { announce, button, copyText, el } from "./dom.js";
import * as editor from "./editor.js";
import { refill } from "./focus.js";
import * as kept from "./kept.js";
import * as head from "./head.js";
import * as keys from "./keys.js";
import { stateLink } from "./links.js";
import * as marks from "./marks.js";
import * as live from "./live.js";
import * as panels from "./panel.js";
import "./printing.js";
import * as session from "./session.js";
import * as state from "./state.js";
import * as theme from "./theme.js";
import * as tip from "./tip.js";
import { setStyle, STYLES } from "./units.js";
import { FIRST, VIEWS } from "./views/index.js";

const VERSION = "1"; // of links
const REST_MS = 3000; // after the first view
const root = document.getElementById("view");
let unmount = null;
let loading = null;
let refused = null; // why the code of the link was not taken

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
  refill(root);
  const view = viewOfState();
  try {
    if (!view) throw new api.Refusal({ message: `there is no view ${state.get("view")}`, hint: VIEWS.map((each) => each.name).join(", ") });
    const module = load(view); // while the session is asked for
    module.catch(() => {}); // it is awaited below
    if (view.needsJob && (await session.load(mine.signal)) === null) {
      drawHead();
      root.append(el("p", { class: "message" }, "There is no session yet. Record one: rankmem run --db FILE -- COMMAND"));
      lookAgain(mine);
      return;
    }
    const { mount } = await module;
    if (mine.signal.aborted) return;
    drawHead();
    if (!kept.isFile()) live.start(session.job()?.id ?? null);
    unmount = mount(root);
    document.title = titleOf(view);
  } catch (error) {
    if (error.name === "AbortError") return;
    drawHead();
    fail(error);
    if (error.code === "unavailable") lookAgain(mine);
  } finally {
    if (loading === mine) document.body.dataset.ready = "true";
  }
}

function lookAgain(mine) {
  setTimeout(async () => {
    const found = await api.ask("sessions", { limit: 1 }, mine.signal).catch(() => []);
    if (loading === mine) (found.length ? show : lookAgain)(mine);
  }, REST_MS);
}

// The module of a view. A browser may remember that it did not get one.
async function load(view) {
  try {
    return await view.load();
  } catch {
    const message = `the page's server did not give the view ${view.title}`;
    throw new api.Refusal({ code: "unavailable", message, hint: "see that rankmem page runs, and load this page again" });
  }
}

function fail(failed) {
  const error = failed.status === 401 && refused ? refused : failed;
  refill(
    root,
    el(
      "section",
      { class: "card" },
      el(
        "div",
        { class: "message failed" },
        el("p", {}, error.message),
        error.hint ? el("p", { class: "hint" }, `Try: ${error.hint}`) : "",
        failed.status === 401 || failed.status === 403 ? tokenForm() : button("again", show),
      ),
    ),
  );
  announce(error.message);
}

// Who was given no link shows a token of the page's file instead.
function tokenForm() {
  const token = el("input", { type: "password", name: "token", autocomplete: "off", "aria-label": "token" });
  const enter = async (event) => {
    event.preventDefault();
    try {
      await api.letIn({ token: token.value.trim() });
    } catch (error) {
      fail(error);
      return;
    }
    refused = null;
    await show();
  };
  return el("form", { class: "tools", onsubmit: enter }, el("label", {}, "or enter a token: ", token), el("button", { type: "submit" }, "enter"));
}

function titleOf(view) {
  const name = session.job()?.facts.session.name ?? session.job()?.id;
  return [view.title, name, "rankmem"].filter(Boolean).join(" · ");
}

// The header's parts are made once, and set to each state: an element that stays keeps the focus, also behind a dialog.
const logo = stateLink({ view: null }, { class: "logo" }, "rankmem");
const links = new Map(VIEWS.map((view) => [view, stateLink({ view: view.name }, {}, view.title)]));
const nav = el("nav", { "aria-label": "Views" }, ...links.values());
const themes = button("", () => drawTheme(theme.nextTheme()));
const tools = [
  el("span", { class: "grow" }),
  button("marks", marks.show, { title: "ranges and instants that you name (M)" }),
  button("copy link", copyLink, { title: "this very state, as a link" }),
  themes,
  button("?", keys.showKeys, { "aria-label": "Keys" }),
];

function drawHead() {
  const current = viewOfState();
  for (const [view, link] of links) {
    if (view === current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  drawTheme(theme.theme());
  refill(document.getElementById("head"), logo, ...head.choosers(), live.badge, nav, ...tools);
}

function drawTheme(name) {
  themes.textContent = `theme: ${name}`;
}

// The address without a code: whoever opens it needs to be let in by a code or cookie of their own.
async function copyLink() {
  await copyText(location.href, "the link");
}

function fileText({ written, holds, missing, rankmem }) {
  const lacks = missing.length ? ` Not exact: ${missing.join("; ")}.` : "";
  return `A page in one file, written ${written.slice(0, 10)} by rankmem ${rankmem}. It holds ${holds}.${lacks}`;
}

// Takes over what belongs to the whole page; what is not understood of it stands above the view.
function readFrame() {
  const misread = new Map();
  state.collecting(misread, () => {
    setStyle(state.choice("style", STYLES));
    state.read("v", (text) => (text === VERSION ? text : null), `the link is read as one of version ${VERSION}`);
    marks.all();
  });
  const place = document.getElementById("misread");
  place.hidden = !misread.size;
  place.textContent = [...misread.values()].join(" ");
}

// The view is built anew for another view, session or style; its panels follow all else by themselves.
function follow(changed) {
  if (["style", "v", "marks"].some((key) => changed.has(key))) readFrame();
  if (["view", "s", "style", "v"].some((key) => changed.has(key))) show();
  else drawHead();
}
keys.bind("?", "this list", keys.showKeys);
keys.bind("M", "marks: name the range that is shown", () => session.job() && marks.show());

async function begin() {
  theme.apply();
  if (kept.isFile()) document.getElementById("foot").textContent = fileText(kept.file());
  if (kept.isFile() && location.hash.length < 2) history.replaceState(null, "", `#${new URLSearchParams(kept.file().state)}`);
  const given = new URLSearchParams(location.hash.slice(1));
  const code = given.get("code");
  const wanted = given.get("editor");
  if (code) {
    given.delete("code");
    given.delete("editor");
    history.replaceState(null, "", `#${given}`);
    // A browser that has its cookie already may open a link that was used.
    await api.letIn({ code }).catch((error) => (refused = error));
    // Only a link that lets in, which the user's own command printed, says which editor it is.
    if (!refused && wanted) editor.keep(wanted);
  }
  state.readLink();
  readFrame();
  await show();
  state.listen(follow);
  // What else there is, is at hand when it is wanted, also where the server is gone by then.
  const rest = () => [...VIEWS.map(load), import("./save.js")].forEach((module) => module.catch(() => {}));
  setTimeout(rest, REST_MS);
}

// For tests and for the console of a browser.
window.rankmem = {
  drawn: panels.drawn,
  panel: panels.panel,
  panels: panels.allPanels,
  state,
  live: live.status,
  job: session.job,
  traffic: api.traffic,
  views: VIEWS.map(({ name, needsJob }) => ({ name, needsJob })),
  kindsOf: async (panel) => (await import("./save.js")).kindsOf(panel),
  keyOf: kept.isFile() ? kept.keyOf : null,
};

begin();
