// What is known of the event under the pointer. Its operator and stack are asked for once the pointer rests.

import * as api from "./api.js";
import * as session from "./session.js";
import * as tip from "./tip.js";
import * as units from "./units.js";

const REST_MS = 80;
const FRAMES_SHOWN = 8;
const KNOWN_MAX = 500;

export class EventTip {
  constructor() {
    this.known = new Map();
    this.over = null;
  }

  // Shows lines, then event i of `events` ({seqs, actions, sizes, addresses}).
  show(surface, x, y, lines, events, i) {
    const seq = events.seqs[i];
    const told = [...lines];
    if (events.actions[i]) {
      told.push(`event ${units.count(seq)}: ${events.actions[i]} ${units.bytes(events.sizes[i])} at ${events.addresses[i]}`);
    }
    const key = keyOf(seq);
    this.over = { surface, x, y, told, key };
    tip.showAt(surface, x, y, [...told, ...(this.known.get(key) ?? [])]);
    clearTimeout(this.resting);
    if (!events.actions[i] || this.known.has(key)) return;
    this.resting = setTimeout(() => this.ask(seq), REST_MS);
  }

  async ask(seq) {
    const whose = session.chosenParameters();
    const key = keyOf(seq);
    try {
      const event = (await api.ask(session.of("events"), { ...whose, seq, count: 1 })).rows()[0];
      const frames = event?.stack_id ? (await api.ask(session.of("stack"), { stack_id: event.stack_id })).rows() : [];
      if (this.known.size > KNOWN_MAX) this.known.clear();
      this.known.set(key, event ? linesOf(event, frames) : []);
    } catch (error) {
      return; // the tooltip goes without; the next hover asks again
    }
    if (this.over?.key === key) {
      const { surface, x, y, told } = this.over;
      tip.showAt(surface, x, y, [...told, ...this.known.get(key)]);
    }
  }

  leave() {
    clearTimeout(this.resting);
    this.over = null;
  }
}

// An event of the chosen device: other ranks' events have the same numbers.
function keyOf(seq) {
  return JSON.stringify([session.job().id, session.chosenParameters(), seq]);
}

// A frame as text.
function frameText({ file_path: file, line_number: line, function: name }) {
  return line ? `${file}:${line} ${name}` : [file, name].filter(Boolean).join(" ");
}

function linesOf(event, frames) {
  const about = [event.category, event.operator ?? "no operator recorded", event.module, event.phase].filter(Boolean);
  // The allocator's own frames say nothing of the program.
  const python = frames.filter((frame) => frame.origin !== "native");
  const shown = (python.length ? python : frames).slice(0, FRAMES_SHOWN);
  const more = frames.length - shown.length;
  return [
    about.join(" · "),
    ...(frames.length ? shown.map((frame) => `  ${frameText(frame)}`) : ["no stack recorded"]),
    more > 0 ? `  and ${more} more frames` : null,
  ];
}
