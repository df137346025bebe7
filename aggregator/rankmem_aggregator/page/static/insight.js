// A panel of an insight: what one of rankmem's verbs says, with its sentence, certainty, figures and notes. One that takes
// long is asked when its button is pressed; for which questions that was is remembered as long as the page is open.

import { button, el } from "./dom.js";
import { refill } from "./focus.js";
import { Panel } from "./panel.js";
import { Table } from "./table.js";

const CERTAINTIES = {
  exact: "follows from the recorded events",
  predicted: "from a model whose error was measured",
  suspected: "from a rule or a model that was wrong in a measured share of cases, or was not measured",
};
const pressed = new Set();

// asks(): a list of one question, or a text that says what to do first; columns: of the rows, or draw(place, rows) where
// they are no table; words(insight): its sentence and notes, where not all are shown; press: {button, text} of one that is
// asked for; onPick(row); told(insight): what else shows it. `follows`: whether it is asked again while a session runs.
export function insightPanel(root, { id, title, reads, asks, columns, draw, words = wordsOf, press = null, onPick = null, told = null, follows = false }) {
  const panel = new Panel(root, {
    id,
    title,
    reads,
    hasSql: false,
    asks: () => {
      const asked = asks();
      const waits = press !== null && Array.isArray(asked) && !pressed.has(JSON.stringify(asked));
      start.hidden = !waits;
      if (waits) panel.note("");
      return waits ? press.text : asked;
    },
    show: (answer) => {
      const { insight } = answer.facts;
      const rows = answer.rows();
      panel.drawn = { insight, rows };
      panel.note("");
      if (insight.verdict === "cannot tell") {
        panel.say(`Cannot tell: ${insight.sentence}.`, insight.next_commands[0] ?? "");
        panel.drawn = { insight, rows };
      } else {
        const { sentence, lines } = words(insight);
        panel.note(answer.facts.source);
        refill(said, el("p", { class: "said" }, `${sentence}.`), certaintyLine(insight));
        place.hidden = !rows.length;
        if (table) table.set(rows);
        else draw(place, rows);
        refill(notes, ...lines.map((line) => el("li", {}, line)), nextLine(insight));
      }
      told?.(insight);
    },
  });
  const start = button(press?.button ?? "ask again", () => {
    pressed.add(JSON.stringify(asks()));
    panel.refresh();
  });
  start.hidden = true;
  panel.tools.prepend(start);
  const [said, place, notes] = [el("div"), el("div"), el("ul", { class: "notes" })];
  panel.body.append(said, place, notes);
  const table = columns ? new Table(place, { columns, label: title, key: (row) => JSON.stringify(row), onPick }) : null;
  if (!follows) panel.follow = async () => panel.drawn && offerAgain();
  const offerAgain = () => {
    panel.note("as of when it was asked: the session has gone on");
    start.hidden = false;
  };
  return panel;
}

function certaintyLine({ certainty, error }) {
  return el("p", { class: "note", title: CERTAINTIES[certainty] ?? null }, [certainty, error].filter(Boolean).join(": "));
}

function wordsOf({ sentence, notes }) {
  return { sentence, lines: notes };
}

function nextLine({ next_commands: commands }) {
  return commands.length ? el("li", {}, "next: ", el("span", { class: "code" }, commands.join("  ·  "))) : "";
}
