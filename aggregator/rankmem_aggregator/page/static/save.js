// A panel in a file: its picture as PNG or SVG, made here; its rows as CSV, made here, or Arrow and Parquet, as the
// server writes them; and what other tools read.

import * as api from "./api.js";
import { announce, button, el, openDialog } from "./dom.js";
import { noFormula } from "./formulas.js";
import * as session from "./session.js";
import * as state from "./state.js";
import { surfaceOf } from "./surface.js";
import { svgOf } from "./svg.js";

// Opens the choice of what to save of a panel.
export function choose(panel) {
  const kinds = kindsOf(panel);
  const choice = ([name, what, make]) =>
    el("tr", {}, el("td", {}, button(name, () => take(dialog, panel, make))), el("td", {}, what));
  const dialog = openDialog(
    "Save",
    { heading: `Save: ${panel.heading.textContent}`, class: "save" },
    kinds.length ? el("table", {}, el("tbody", {}, ...kinds.map(choice))) : el("p", {}, "This panel shows nothing yet."),
    button("close", () => dialog.close(), { autofocus: true }),
  );
}

// What can be saved of a panel: [name, what it is, make(): {name, body, type}].
export function kindsOf(panel) {
  return [...pictures(panel), ...rows(panel), ...files(panel)];
}

async function take(dialog, panel, make) {
  dialog.close();
  try {
    const { name, body, type } = await make();
    download(`${panel.id}-${name}`, body, type);
    announce(`saved ${panel.id}-${name}`);
  } catch (error) {
    panel.fail(error);
  }
}

function download(name, body, type) {
  const address = URL.createObjectURL(body instanceof Blob ? body : new Blob([body], { type }));
  el("a", { href: address, download: name.replace(/[^\w.-]+/g, "_") }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

function pictures(panel) {
  const canvases = [...panel.body.querySelectorAll("canvas")].filter((canvas) => canvas.clientWidth && surfaceOf(canvas));
  return canvases.flatMap((canvas, i) => {
    const number = canvases.length > 1 ? `${i + 1}` : "picture";
    return [
      [`PNG ${canvases.length > 1 ? number : ""}`.trim(), canvas.getAttribute("aria-label"), async () => ({ name: `${number}.png`, body: await png(canvas) })],
      [`SVG ${canvases.length > 1 ? number : ""}`.trim(), "the same as lines and texts, to any size", () => ({ name: `${number}.svg`, body: svgOf(surfaceOf(canvas)), type: "image/svg+xml" })],
    ];
  });
}

function png(canvas) {
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

// Of every answer that the panel shows.
function rows(panel) {
  const asked = Array.isArray(panel.asked) ? panel.asked : [];
  return panel.answers.flatMap((answer, i) => {
    const [path, parameters, options] = asked[i] ?? [];
    if (!path) return [];
    const short = path.split("/").pop();
    const what = asked.length > 1 ? `${short}: ` : "";
    const whole = () => (panel.isPart ? api.ask(path, parameters, undefined, options) : answer);
    const of = (kind) => async () => ({ name: `${short}.${kind}`, body: await api.exported(kind, path, parameters, options) });
    const made = [
      ["CSV", `${what}rows for a spreadsheet, which runs no text of them as a formula`, async () => ({ name: `${short}.csv`, body: csvOf(await whole()), type: "text/csv" })],
    ];
    if (!api.isServed()) return made;
    made.push(
      ["Arrow", `${what}the answer as it came, with its facts`, of("arrow")],
      ["Parquet", `${what}the same for DuckDB, pandas, Polars`, of("parquet")],
    );
    if (short === "flame") made.push(["Speedscope", "the flame graph for speedscope.app", of("speedscope")]);
    return made;
  });
}

// What other tools read, of the chosen rank and the range that is shown; of panels that are about a session.
function files(panel) {
  const job = session.job();
  if (!job || !panel.answers[0]?.facts.watermark || !api.isServed()) return [];
  const chosen = session.chosenParameters();
  const [from, to] = session.range();
  const whole = from === job.first && to === job.last ? {} : { from, to };
  const of = (kind, name, given) => async () => ({ name, body: await api.file(session.of(`file/${kind}`), given) });
  const found = [["HTML", "the page in one file, which opens anywhere", of("html", "page.html", { ...whole, marks: state.get("marks") })]];
  if (!chosen) return found;
  const rank = { ...whole, rank: chosen.rank };
  return [
    ...found,
    ["Memory snapshot", `rank ${chosen.rank} in this range for pytorch.org/memory_viz`, of("snapshot", `rank-${chosen.rank}.pickle`, rank)],
    ["Perfetto trace", `rank ${chosen.rank} in this range for ui.perfetto.dev`, of("perfetto", `rank-${chosen.rank}.json.gz`, rank)],
  ];
}

// The rows of an answer as CSV; a text that a spreadsheet would run as a formula gets an apostrophe.
function csvOf(answer) {
  const columns = answer.names.map((_, i) => answer.table.getChildAt(i).toArray());
  const lines = [answer.names.map(cell)];
  for (let row = 0; row < answer.length; row += 1) lines.push(columns.map((column) => cell(column[row])));
  return `${lines.map((line) => line.join(",")).join("\r\n")}\r\n`;
}

function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  const text = typeof value === "string" ? value : JSON.stringify(Array.from(value));
  const safe = noFormula(text);
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
