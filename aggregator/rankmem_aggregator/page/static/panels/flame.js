// What was held, as a flame graph: by line, module or operator, of the blocks that the table shows. A click zooms and
// filters the other panels; the frame's bar below has what else can be done with it. The picked block's path is outlined.

import { button, chooser, copyText, el, toggles } from "../dom.js";
import { opener } from "../editor.js";
import { FlameGraph, shortName } from "../flame.js";
import { mergedPath, nodesOf, outermost, pathOf, sandwich } from "../flame_trees.js";
import { keepFocus, refill } from "../focus.js";
import { Panel } from "../panel.js";
import * as lives from "../lives.js";
import { pickedPath } from "../picked_block.js";
import { addPick, chips, picks, picksBut, removeKind } from "../selection.js";
import * as session from "../session.js";
import * as state from "../state.js";
import * as tip from "../tip.js";
import * as units from "../units.js";

// The kind of pick that a click on a box of each kind makes. Those of TREE are shown here by zooming, not by filtering.
const PICKS = { frame: "frame", module: "within", operator: "operator", category: "category" };
const TREE = { line: "frame", module: "within", operator: "operator" };
const OPTIONS = [
  ["inverted", "innermost first"],
  ["category", "categories"],
  ["direct", "direct recursion once"],
  ["all", "each frame once"],
  ["fine", "all down to 0.05 %"],
];
const MIN_SHARE = 0.002;

// Adds the panel to `root`; `asksWhich`: it has the choice of which blocks, which another panel of the view has otherwise.
// Returns what refreshes it and takes it down.
export function flamePanel(root, { asksWhich = false } = {}) {
  let others = "";
  let outlining = null;
  const panel = new Panel(root, {
    id: "flame",
    title: "Held, by stack",
    reads: [...lives.reads(), "tree"],
    asks: () => {
      panel.reads = new Set(["s", ...lives.reads(), "tree"]);
      const meant = lives.parameters();
      if (!meant) return session.NO_EVENTS;
      others = pickOfOthers();
      return [[session.of("flame"), { ...meant, ...treeParameters(), pick: others }]];
    },
    show: (answer) => {
      const nodes = Object.fromEntries(["parent", "kind", "name", "bytes", "blocks"].map((name) => [name, answer.column(name)]));
      panel.note(noteOf(answer.facts));
      panel.title(`${lives.TITLES[lives.which()]}, by ${{ line: "stack", module: "module", operator: "operator" }[by()]}`);
      empty.hidden = answer.facts.blocks > 0;
      graph.surface.canvas.parentElement.hidden = !empty.hidden;
      around.hide();
      graph.set(nodes);
      graph.surface.label(`flame graph of ${units.bytes(answer.facts.bytes)} in ${units.count(answer.length)} boxes; arrow keys go from box to box, Enter zooms`);
      drawn(answer.facts);
      find();
      focusOnPick();
      outlineBlock();
    },
    table: () => tableOf(graph.tree),
  });

  const group = chooser("by", [["line", "by stack"], ["module", "by module"], ["operator", "by operator"]], by(), (value) => setTree(value, options()));
  const checks = OPTIONS.map(([name, text]) => {
    const box = el("input", { type: "checkbox", checked: options().includes(name), onchange: () => setTree(by(), toggled(name, box.checked)) });
    return { name, box, label: el("label", { class: "note" }, box, ` ${text}`) };
  });
  const kinds = toggles("which blocks", lives.WHICH, lives.which(), lives.choose);
  kinds.hidden = !asksWhich;
  const searched = el("span", { class: "note", role: "status" });
  const search = el("input", { type: "search", placeholder: "search, a regular expression", "aria-label": "search frames by a regular expression", size: 24, oninput: () => find() });
  const bar = el("div", { class: "bar", role: "group", "aria-label": "how the flame graph is made" }, kinds, group, ...checks.map(({ label }) => label), el("span", { class: "grow" }), search, searched);
  panel.element.insertBefore(bar, panel.message);
  const endChips = chips(panel, "block");

  const path = el("div", { class: "path note" });
  const place = el("div", { class: "flames" });
  const empty = el("p", { class: "message", hidden: true }, "No block fits. Take a filter away, or choose another instant or range.");
  const frameBar = el("div", { class: "bar frame", hidden: true });
  panel.body.append(path, empty, place, frameBar);
  const graph = new FlameGraph(place, { label: "flame graph", hover: (node, x, y) => hover(graph, node, x, y), leave: tip.hide, pick: (node) => pick(node), menu: (node) => copy(graph.tree.name[node], node) });
  const around = aroundPart(panel.body, { hover, copy: (name) => copy(name, null) });

  Object.assign(panel, { graph, around: around.graphs }); // for tests
  function hover(one, node, x, y) {
    const { tree } = one;
    const whole = panel.answers[0]?.facts.bytes || 1;
    tip.showAt(one.surface, x, y, [tree.name[node], `${units.bytes(tree.bytes[node])}, ${units.share(tree.bytes[node] / whole)} of ${units.bytes(whole)}`, `${units.count(tree.blocks[node])} blocks`]);
  }

  // A click: zooms, and picks the frame for the other panels.
  function pick(node) {
    const kind = node && PICKS[graph.tree.kind[node]];
    zoom(node);
    if (!node || !kind) removeKind(TREE[by()], { within: true });
    else addPick(kind, kind === "within" ? modulePath(node) : graph.tree.name[node], { within: true });
  }

  function zoom(node) {
    graph.zoom(node);
    const names = pathOf(graph.tree, node);
    const steps = [];
    for (let i = node; i > 0; i = graph.tree.parent[i]) steps.unshift(i);
    keepFocus(panel.body, () => {
      refill(
        path,
        ...(names.length ? [button("all", () => pick(0), { class: "quiet" }), ...steps.map((step, i) => el("span", {}, " › ", button(shortOf(shortName(graph.tree.kind[step], names[i])), () => pick(step), { class: "quiet", title: names[i] })))] : []),
      );
      drawFrameBar(node);
    });
    drawn(panel.answers[0].facts);
  }

  function drawFrameBar(node) {
    const { tree } = graph;
    frameBar.hidden = !node;
    if (!node) return;
    const name = tree.name[node];
    const all = outermost(tree, (i) => tree.name[i] === name).reduce((sum, i) => sum + tree.bytes[i], 0);
    refill(
      frameBar,
      el("b", {}, name),
      el("span", { class: "note" }, `${units.bytes(tree.bytes[node])} here, ${units.bytes(all)} in all`),
      el("span", { class: "grow" }),
      button("callers and callees", () => around.show(sandwich(tree, name), name)),
      button("copy", () => copy(name, null)),
      tree.kind[node] === "frame" ? (opener(name, () => drawFrameBar(node)) ?? "") : "",
    );
  }

  // Module paths are names joined by dots; of an inverted tree from the innermost outwards.
  function modulePath(node) {
    const names = pathOf(graph.tree, node);
    return (options().includes("inverted") ? names.reverse() : names).join(".");
  }

  async function copy(name, node) {
    panel.copiedFrame = name;
    await copyText(name, name);
    if (node !== null) drawFrameBar(node);
  }

  function find() {
    const text = search.value.trim();
    let pattern = null;
    try {
      pattern = text && new RegExp(text, "i");
    } catch {
      searched.textContent = "no regular expression";
      return;
    }
    const { bytes, count } = graph.mark(pattern ? (name) => pattern.test(name) : null);
    searched.textContent = pattern ? `${units.count(count)} boxes, ${units.bytes(bytes)}, ${units.share(bytes / (graph.tree.total || 1))}` : "";
    panel.found = pattern ? { bytes, count } : null;
  }

  function focusOnPick() {
    const kind = TREE[by()];
    const chosen = picks().find((each) => each.kind === kind);
    let node = 0;
    for (let i = 1; chosen && !node && i < graph.tree.count; i += 1) {
      if ((kind === "within" ? modulePath(i) : graph.tree.name[i]) === chosen.value) node = i;
    }
    const stays = chosen && graph.focus && (kind === "within" ? modulePath(graph.focus) : graph.tree.name[graph.focus]) === chosen.value;
    if (!stays) zoom(node);
  }

  // The path of the picked block, where it is among what is shown.
  async function outlineBlock() {
    const mine = (outlining = {});
    const names = await pickedPath(by());
    if (outlining !== mine || panel.drawn === null) return;
    const path = options().includes("inverted") ? names?.reverse() : names;
    graph.outline(nodesOf(graph.tree, mergedPath(path ?? [], treeParameters().recursion)));
    drawn(panel.answers[0].facts);
  }

  function drawn(facts) {
    panel.drawn = { ...graph.tree, focus: graph.focus, path: [...graph.path], facts };
  }

  const endFollow = state.listen((changed) => {
    group.value = by();
    kinds.set(lives.which());
    for (const { name, box } of checks) box.checked = options().includes(name);
    if (!changed.has("pick")) return;
    if (pickOfOthers() !== others) panel.refresh();
    else if (panel.answers.length) {
      focusOnPick();
      outlineBlock();
    }
  });

  return {
    panel,
    graph,
    refresh: () => panel.refresh(),
    destroy: () => {
      endChips();
      endFollow();
      graph.destroy();
      around.hide();
      panel.destroy();
    },
  };
}

// The callers above and the callees below of one frame, beneath the graph.
function aroundPart(parent, { hover, copy }) {
  const place = el("div", { class: "around", hidden: true });
  parent.append(place);
  let graphs = [];
  const hide = () =>
    keepFocus(place, () => {
      for (const graph of graphs) graph.destroy();
      graphs = [];
      place.hidden = true;
    });
  const show = ({ callers, callees }, name) => {
    hide();
    place.hidden = false;
    refill(place, el("div", { class: "title" }, el("b", {}, `around ${name}`), el("span", { class: "note" }, "what called it above, what it called below"), el("span", { class: "grow" }), button("close", hide, { class: "quiet" })));
    graphs = [["callers", callers, true], ["callees", callees, false]].map(([label, nodes, upward]) => {
      const graph = new FlameGraph(el("div", { class: "flames" }), { label: `${label} of ${name}`, upward, hover: (node, x, y) => hover(graph, node, x, y), leave: tip.hide, pick: (node) => graph.zoom(node), menu: (node) => copy(graph.tree.name[node]) });
      place.append(graph.surface.canvas.parentElement);
      graph.set(nodes);
      return graph;
    });
  };
  return { show, hide, graphs: () => graphs };
}

function by() {
  return tree()[0];
}

function options() {
  return tree().slice(1);
}

// The state's tree: what it is by, and options.
function tree() {
  const isOption = (name) => OPTIONS.some(([each]) => each === name);
  const parse = (text) => {
    const [kind, ...given] = text.split(",");
    return kind in TREE && given.every(isOption) ? [kind, ...given] : null;
  };
  return state.read("tree", parse, "line is shown, innermost last") ?? ["line"];
}

function toggled(name, on) {
  const rest = options().filter((each) => each !== name && !(on && ["direct", "all"].includes(name) && ["direct", "all"].includes(each)));
  return on ? [...rest, name] : rest;
}

function setTree(kind, chosen) {
  const text = [kind, ...chosen].join(",");
  state.change({ tree: text === "line" ? null : text });
}

function treeParameters() {
  const chosen = options();
  const recursion = chosen.includes("all") ? "all" : chosen.includes("direct") ? "direct" : null;
  return {
    by: by(),
    inverted: chosen.includes("inverted") ? "1" : null,
    category: chosen.includes("category") ? "1" : null,
    recursion,
    min_share: chosen.includes("fine") ? null : MIN_SHARE,
  };
}

// What the other panels' picks leave: this one's own are shown by zooming, a block's by its row.
function pickOfOthers() {
  return picksBut("block", TREE[by()]);
}

function shortOf(name) {
  return name.length > 40 ? `…${name.slice(-39)}` : name;
}

function noteOf({ bytes, blocks, seq, at_ns: at, min_share: share }) {
  const when = seq === null ? "" : ` after event ${units.count(seq)} (${units.time(at)})`;
  return `${units.bytes(bytes)} in ${units.counted(blocks, "block")} ${lives.TEXTS[lives.which()]}${when}; what is below ${units.share(share)} is put together`;
}

function tableOf(tree) {
  const rows = [];
  for (let i = 0; i < Math.min(tree.count, 500); i += 1) rows.push([tree.depth[i], tree.name[i], units.bytes(tree.bytes[i]), units.count(tree.blocks[i])]);
  return { columns: ["level", "name", "bytes", "blocks"], rows };
}
