// One block, below the table: its life, its groups to pick, and its Python stack.

import * as api from "../api.js";
import { button, copyText, el } from "../dom.js";
import { opener, template } from "../editor.js";
import { BLOCK_GROUPINGS } from "../facts.js";
import { refill } from "../focus.js";
import { frameText } from "../picked_block.js";
import { addPick } from "../selection.js";
import * as session from "../session.js";
import * as state from "../state.js";
import * as units from "../units.js";

const KNOWN_BY = {
  template: "an earlier step that ran like its own: operator, module, phase, stacks and category are those of block",
  template_prefix: "an earlier step that began like its own: operator, module, phase, stacks and category are those of block",
  evidence: "what was read at its allocation; a forward call and a category may be missing",
  none: "nothing: its call was not observed",
};

// Fills `place` with a row of /blocks; its stack follows when it has come.
export async function showBlock(place, row, close) {
  const copy = button("copy the stack", () => copyText(texts.join("\n"), "the stack"), { class: "quiet", disabled: true, title: "it has not come yet" });
  const events = el(
    "span",
    { class: "tools" },
    row.preexisting ? "" : button("when it was made", () => state.change({ seq: row.allocation_id }), { class: "quiet", title: `after event ${row.allocation_id}` }),
    copy,
    button("close", close, { class: "quiet" }),
  );
  const groups = BLOCK_GROUPINGS.filter(([kind]) => (row[kind] ?? null) !== null).map(([kind]) =>
    button(`${kind}: ${row[kind]}`, () => addPick(kind, row[kind]), { class: "chip", title: `only blocks of this ${kind}` }),
  );
  const list = el("ol", { class: "stack" });
  let texts = [];
  place.hidden = false;
  refill(
    place,
    el("div", { class: "title" }, el("b", {}, `block ${row.allocation_id}: ${units.bytes(row.size_bytes)}`), el("span", { class: "note" }, lifeOf(row)), el("span", { class: "grow" }), events),
    el("div", { class: "chips" }, ...groups),
    knownBy(row),
    list,
  );
  if (row.stack_id === null) {
    copy.remove();
    list.replaceWith(el("p", { class: "note" }, "No stack was recorded for it. Record them: RANKMEM_STACKS=full, the default of detail full."));
    return;
  }
  for (const [title, id] of [["", row.stack_id], ["the forward call it belongs to", row.forward_stack_id]]) {
    if (id === null) continue;
    try {
      const frames = (await api.ask(session.of("stack"), { stack_id: id })).rows();
      if (!list.isConnected) return; // another block is shown by now
      texts = [...texts, ...frames.map(frameText)];
      if (title) list.append(el("li", { class: "note" }, title));
      for (const frame of frames) list.append(el("li", { class: frame.origin }, frameText(frame), " ", template() ? (opener(frameText(frame)) ?? "") : ""));
    } catch (error) {
      list.append(el("li", { class: "note" }, error.message));
    }
  }
  copy.disabled = !texts.length;
  copy.title = texts.length ? "" : "it could not be read";
  if (texts.length && !template()) events.prepend(opener(texts[0], () => showBlock(place, row, close)) ?? "");
  place.dataset.frames = String(texts.length);
}

// A line where it is not its own call's record; "" else, and where all is as an imported file or an older database says.
function knownBy(row) {
  const by = row.attribution ?? "observed";
  return by === "observed" ? "" : el("p", { class: "note" }, `known by: ${KNOWN_BY[by] ?? by} ${row.like_id ?? ""}`);
}

function lifeOf(row) {
  if (row.preexisting) return row.freed_ns === null ? "older than the recording, never freed" : `older than the recording, freed ${units.time(row.freed_ns)}`;
  const end = row.freed_ns === null ? "never freed" : `freed ${units.time(row.freed_ns)}, after ${units.duration(row.life_ns)}`;
  const waited = row.free_requested_ns !== null && row.freed_ns !== null ? `; asked for ${units.duration(row.freed_ns - row.free_requested_ns)} before` : "";
  return `made ${units.time(row.allocated_ns)}, ${end}${waited}`;
}
