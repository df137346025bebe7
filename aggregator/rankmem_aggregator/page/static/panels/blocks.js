// Blocks of the chosen rank as a table: those alive at an instant, or made, freed, kept in the range; filtered, sorted and
// page by page on the server.

import { button, chooser, el, toggles, wanted } from "../dom.js";
import { keepFocus, refill } from "../focus.js";
import * as lives from "../lives.js";
import { drawPager } from "../pager.js";
import { Panel } from "../panel.js";
import { pickedBlock, pickedRow } from "../picked_block.js";
import { chips, isPicked, picksBut, removeKind, togglePick } from "../selection.js";
import * as session from "../session.js";
import * as state from "../state.js";
import { Table } from "../table.js";
import * as units from "../units.js";
import { blockColumns } from "./block_columns.js";
import { ranges, rangeTexts, removeRange } from "./block_ranges.js";

const SIZES = ["10", "25", "50", "100", "250", "1000"];
const SIZE = "50";
const SORT = "-size";
const TYPING_MS = 250;
const READS = ["q", "fit", "sort", "rows"];

// Adds the panel to `root`; returns what refreshes it and takes it down.
export function blocksPanel(root) {
  let starts = [null]; // the block after which each page begins, up to the one that is shown
  let facts = {};
  let others = picksBut("block");
  const endReset = state.listen((changed) => {
    const now = picksBut("block");
    if (now === others && changed.size === 1 && changed.has("pick")) return;
    starts = [null];
    if (now !== others) panel.refresh();
    others = now;
  });
  const panel = new Panel(root, {
    id: "blocks",
    title: "Blocks",
    reads: [...READS, ...lives.reads()],
    asks: () => {
      panel.reads = new Set(["s", ...READS, ...lives.reads()]);
      const meant = lives.parameters();
      if (!meant) return session.NO_EVENTS;
      const fits = { ...meant, ...ranges(), q: state.get("q"), pick: picksBut("block") };
      const page = { sort: state.get("sort") ?? SORT, limit: state.get("rows") ?? SIZE, after: starts.at(-1) };
      return [[session.of("blocks"), { ...fits, ...page }], [session.of("blocks/total"), fits]];
    },
    empty: "No block fits. Take a filter away, or choose another instant or range.",
    show: (answer, totals) => {
      const rows = answer.rows();
      const total = totals.rows()[0];
      facts = { ...answer.facts, ...total };
      panel.drawn = { rows, total, facts };
      panel.note(noteOf(facts));
      table.set(rows, sortOf(answer.facts.sort));
      drawPages(rows.length);
      follow();
    },
  });

  const kinds = toggles("which blocks", lives.WHICH, lives.which(), lives.choose);
  let typed = 0;
  const search = el("input", {
    type: "search",
    placeholder: "operator, module, line, category",
    "aria-label": "search: words, each part of operator, module, line or category",
    value: state.get("q") ?? "",
    size: 28,
    oninput: () => {
      clearTimeout(typed);
      typed = setTimeout(() => state.change({ q: search.value.trim() }, { within: true }), TYPING_MS);
    },
  });
  const fits = el("span", { class: "chips" });
  const bar = el("div", { class: "bar", role: "group", "aria-label": "filters of the blocks" }, kinds, search, button("ranges", () => wanted(import("./range_dialog.js"), (dialog) => dialog.chooseRanges())), fits);
  panel.element.insertBefore(bar, panel.message);
  const endChips = chips(panel, "block");

  const table = new Table(panel.body, {
    columns: blockColumns(),
    name: "blocks",
    arrows: true,
    key: (row) => row.allocation_id,
    label: "blocks; arrow keys go from row to row, Enter shows one",
    onSort: (sort) => state.change({ sort: sort ? `${sort.descending ? "-" : ""}${sort.name}` : null }),
    onPick: (row) => togglePick("block", row.allocation_id, { within: true }),
  });
  panel.rows = table; // for tests
  const detail = el("div", { class: "detail", hidden: true, "aria-live": "polite" });
  const pager = el("div", { class: "bar pager" });
  panel.body.append(pager, detail);
  panel.tools.prepend(
    table.columnChooser(),
    button("copy", () => table.copy(), { class: "quiet", title: "copy these rows for a spreadsheet" }),
  );

  function drawPages(count) {
    const first = (starts.length - 1) * Number(state.get("rows") ?? SIZE) + 1;
    const turn = (to) => to && (() => turnTo(to));
    drawPager(
      pager,
      {
        first: turn(starts.length > 1 ? [null] : null),
        before: turn(starts.length > 1 ? starts.slice(0, -1) : null),
        next: turn(facts.after === null ? null : [...starts, facts.after]),
        from: first,
        to: first + count - 1,
        total: facts.num_blocks,
      },
      el("span", { class: "grow" }),
      el("label", { class: "note" }, "rows ", chooser("rows of a page", SIZES, state.get("rows") ?? SIZE, (value) => state.change({ rows: value === SIZE ? null : value }))),
    );
  }

  function closeBlock(row) {
    table.focus(row.allocation_id);
    removeKind("block");
  }

  function turnTo(to) {
    starts = to;
    panel.refresh();
  }

  // What follows the state without a new question: the marks of what is chosen.
  function follow() {
    kinds.set(lives.which());
    if (document.activeElement !== search) search.value = state.get("q") ?? "";
    refill(fits, ...rangeTexts().map(([text, name]) => button(`${text} ✕`, () => removeRange(name), { class: "chip" })));
    const row = panel.drawn?.rows.find((each) => isPicked("block", each.allocation_id)) ?? null;
    table.mark(row?.allocation_id ?? null);
    const picked = pickedBlock();
    if (row || picked === null) showDetail(row);
    else pickedRow().then((other) => pickedBlock() === picked && showDetail(other)); // it is on another page, or alive at another time
  }

  function showDetail(row) {
    if (!row) keepFocus(panel.body, () => (detail.hidden = true));
    else if (detail.dataset.block !== String(row.allocation_id) || detail.hidden) wanted(import("./block_detail.js"), ({ showBlock }) => detail.dataset.block === String(row.allocation_id) && showBlock(detail, row, () => closeBlock(row)));
    detail.dataset.block = String(row?.allocation_id ?? "");
  }
  const endFollow = state.listen(follow);
  follow();

  return {
    panel,
    refresh: () => panel.refresh(),
    destroy: () => {
      for (const end of [endReset, endChips, endFollow]) end();
      clearTimeout(typed);
      panel.destroy();
    },
  };
}

// "-size" as the table has it.
function sortOf(text) {
  return { name: text.replace(/^-/, ""), descending: text.startsWith("-") };
}

function noteOf({ which: kind, seq, at_ns: at, num_blocks: count, bytes, largest_bytes: largest, smallest_bytes: smallest }) {
  const when = kind === "alive" ? ` after event ${units.count(seq)} (${units.time(at)})` : "";
  return `${units.count(count)} ${lives.TEXTS[kind]}${when}, ${units.bytes(bytes)} together; the largest ${units.bytes(largest)}, the smallest ${units.bytes(smallest)}`;
}
