// What is different between two sides: a bar for each group, to the left what B has less, to the right what it has more.

import * as api from "../api.js";
import { line } from "../axes.js";
import { chooser, el } from "../dom.js";
import { BLOCK_GROUPINGS } from "../facts.js";
import { refill } from "../focus.js";
import { Panel, partsOf } from "../panel.js";
import * as session from "../session.js";
import * as sides from "../sides.js";
import * as state from "../state.js";
import { FONT, Surface } from "../surface.js";
import { Table } from "../table.js";
import { ink } from "../theme.js";
import * as units from "../units.js";

const GROUPINGS = BLOCK_GROUPINGS.map(([name]) => name);
const BARS_MAX = 24;
const BAR_PX = 22;
const NAME_PX = 300;
const FIGURE_PX = 90;

const COLUMNS = [
  { name: "group_name", title: "group", isPath: true, text: (row) => row.group_name },
  { name: "difference_bytes", title: "B − A", align: "right", text: (row) => units.signedBytes(row.difference_bytes) },
  { name: "a_bytes", title: "A", align: "right", text: (row) => units.bytes(row.a_bytes) },
  { name: "b_bytes", title: "B", align: "right", text: (row) => units.bytes(row.b_bytes) },
  { name: "a_blocks", title: "blocks of A", align: "right", text: (row) => units.count(row.a_blocks) },
  { name: "b_blocks", title: "blocks of B", align: "right", text: (row) => units.count(row.b_blocks) },
];

const grouping = () => state.choice("by", GROUPINGS);

export function diffPanel(root) {
  let rows = [];
  let sessions = [];
  const { both } = sides;
  const panel = new Panel(root, {
    id: "diff",
    title: "Difference",
    reads: ["a", "b", "by"],
    asks: () => {
      const [a, b] = both();
      drawChoosers(a, b);
      return [[session.of("diff"), { a, b, by: grouping(), device_type: session.job().deviceTypes[0] }]];
    },
    empty: "Neither side holds anything then.",
    show: (answer) => {
      const [a, b] = both();
      const { facts } = answer;
      rows = answer.rows();
      panel.drawn = { rows, a: facts.a, b: facts.b, different: facts.different };
      const total = facts.b.bytes - facts.a.bytes;
      panel.note(
        facts.different
          ? `B − A: ${units.bytes(facts.b.bytes)} − ${units.bytes(facts.a.bytes)} = ${units.signedBytes(total)}; A: ${sides.words(a)}; B: ${sides.words(b)}`
          : `no difference: both hold ${units.bytes(facts.a.bytes)} in the same groups`,
      );
      surface.setHeight(Math.min(rows.length, BARS_MAX) * BAR_PX + 8);
      table.set(rows);
    },
    table: () => ({ columns: COLUMNS.map((column) => column.title), rows: rows.map((row) => COLUMNS.map((column) => column.text(row))) }),
  });
  const places = el("div", { class: "rows" });
  panel.element.insertBefore(places, panel.message);
  const surface = new Surface(panel.body, { height: BAR_PX, label: "difference of each group", paint: (g, width) => paint(g, width) });
  const table = new Table(panel.body, { columns: COLUMNS, key: (row) => row.group_name, label: "groups of both sides" });

  function drawChoosers(a, b) {
    refill(
      places,
      sides.choosers("A", a, sessions, (text) => state.change({ a: text, b })),
      sides.choosers("B", b, sessions, (text) => state.change({ a, b: text })),
      el("span", { class: "tools" }, "by ", chooser("group by", GROUPINGS, grouping(), (by) => state.change({ by }))),
    );
  }

  function paint(g, width) {
    const shown = rows.slice(0, BARS_MAX);
    const [below, above] = [-1, 1].map((sign) => Math.max(0, ...shown.map((row) => sign * row.difference_bytes)));
    const left = NAME_PX + (below ? FIGURE_PX : 0);
    const scale = (width - 16 - FIGURE_PX - left) / Math.max(1, below + above);
    const middle = left + below * scale;
    g.font = FONT;
    g.textBaseline = "middle";
    g.strokeStyle = ink("line");
    line(g, middle, 0, middle, shown.length * BAR_PX + 4);
    shown.forEach((row, i) => {
      const y = i * BAR_PX + 4;
      const long = row.difference_bytes * scale;
      g.fillStyle = row.difference_bytes > 0 ? ink("accent") : ink("sel");
      g.fillRect(Math.min(middle, middle + long), y + 2, Math.abs(long), BAR_PX - 6);
      g.fillStyle = row.difference_bytes ? ink("ink") : ink("faint");
      g.textAlign = "left";
      g.fillText(cut(g, row.group_name, NAME_PX - 12), 0, y + BAR_PX / 2 - 1);
      g.textAlign = long < 0 ? "right" : "left";
      g.fillText(units.signedBytes(row.difference_bytes), middle + long + (long < 0 ? -6 : 6), y + BAR_PX / 2 - 1);
    });
  }

  // Other sessions to compare with; without them the page compares within this one.
  api
    .ask("sessions", { limit: 100 })
    .then((answer) => {
      sessions = answer
        .rows()
        .filter((row) => row.session_id !== session.job().id)
        .map((row) => [row.session_id, `${row.name ?? row.session_id} ${row.started ?? ""}`]);
      drawChoosers(...both());
    })
    .catch(() => {});

  return partsOf(panel, surface);
}

// A text that fits into a width, cut in its middle: names of one package begin alike.
function cut(g, text, width) {
  if (g.measureText(text).width <= width) return text;
  let kept = text.length;
  while (kept > 4 && g.measureText(`${text.slice(0, kept / 3)}…${text.slice(-(2 * kept) / 3)}`).width > width) kept -= 3;
  return `${text.slice(0, kept / 3)}…${text.slice(-(2 * kept) / 3)}`;
}
