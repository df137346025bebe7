// A device's memory at an instant: its segments one after the other as lines of text are, by pool and stream, with the
// blocks and holes in them. A block is solid as far as it was asked for, lighter where the allocator rounded up;
// one whose free waits for a stream is hatched.

import { hatchBox } from "./hatching.js";
import { Surface } from "./surface.js";
import { ink } from "./theme.js";
import * as units from "./units.js";

const LINE_PX = 15;
const GAP_PX = 4;
const HEAD_PX = 18;
const LEAST_PX = 1.5;
const HATCH_PX = 6;
const BLOCK = 0;
const PENDING = 1;
export const HOLE = 2;

export class SegmentLines {
  // colour(part): of a block; hover(part or null, segment or null, x, y), leave(), pick(part)
  constructor(parent, { height, label, colour, hover, leave, pick }) {
    this.height = height;
    this.zoom = 1;
    this.colour = colour;
    this.runs = [];
    this.marked = null;
    this.surface = new Surface(parent, { height, label, paint: (g, width) => this.paint(g, width) });
    const { canvas } = this.surface;
    const at = (event) => {
      const place = canvas.getBoundingClientRect();
      return [event.clientX - place.left, event.clientY - place.top];
    };
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = at(event);
      hover(...this.at(x, y), x, y);
    });
    canvas.addEventListener("pointerleave", leave);
    canvas.addEventListener("click", (event) => {
      const [part] = this.at(...at(event));
      if (part) pick(part);
    });
  }

  // Shows parts (rows of /segments, by segment and address) and the facts of the answer.
  set(parts, facts) {
    this.facts = facts;
    this.parts = new Map();
    for (const part of parts) {
      if (!this.parts.has(part.segment)) this.parts.set(part.segment, []);
      this.parts.get(part.segment).push(part);
    }
    this.laid = 0;
    this.surface.draw();
  }

  // Marks the block with this id; null for none.
  mark(block) {
    this.marked = block;
    this.surface.draw();
  }

  setZoom(zoom) {
    this.zoom = zoom;
    this.laid = 0;
    this.surface.draw();
  }

  // Places segments in lines: each run is a part of one that lies in one line.
  layOut(width) {
    const groups = new Map();
    for (const each of this.facts.segments) {
      const key = `${each.is_known} ${each.pool} ${each.stream}`;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(each);
    }
    const bytesOf = (segments) => segments.reduce((sum, each) => sum + each.size_bytes, 0);
    const sorted = [...groups.values()].sort((a, b) => bytesOf(b) - bytesOf(a));
    const total = Math.max(1, bytesOf(this.facts.segments));
    const lines = Math.max(1, Math.floor((this.height - sorted.length * (HEAD_PX + LINE_PX)) / (LINE_PX + GAP_PX)));
    this.scale = (width * lines * this.zoom) / total;
    this.runs = [];
    this.heads = [];
    let y = 0;
    for (const segments of sorted) {
      this.heads.push({ y, text: headOf(segments, bytesOf(segments)) });
      y += HEAD_PX;
      let x = 0;
      for (const segment of segments) {
        const wide = Math.max(segment.size_bytes * this.scale, LEAST_PX);
        if (x > 0 && x + Math.min(wide, width) > width) {
          x = 0;
          y += LINE_PX + GAP_PX;
        }
        let from = 0;
        while (from < segment.size_bytes) {
          const bytes = Math.min(segment.size_bytes - from, Math.max(1, (width - x) / this.scale));
          this.runs.push({ segment, from, bytes, x, y, width: Math.max(bytes * this.scale, LEAST_PX) });
          from += bytes;
          x += Math.max(bytes * this.scale, LEAST_PX) + 1;
          if (from < segment.size_bytes) {
            x = 0;
            y += LINE_PX + GAP_PX;
          }
        }
      }
      y += LINE_PX + GAP_PX * 2;
    }
    this.laid = width;
    if (Math.abs(this.surface.height - y) > 1) this.surface.setHeight(Math.max(40, Math.ceil(y)));
  }

  // The part and segment under a pixel, or [null, null].
  at(x, y) {
    const run = this.runs.find((each) => y >= each.y && y < each.y + LINE_PX && x >= each.x && x < each.x + each.width);
    if (!run) return [null, null];
    const offset = run.from + (x - run.x) / this.scale;
    const parts = this.parts.get(run.segment.segment) ?? [];
    const slack = 1 / this.scale;
    const inside = parts.find((part) => offset >= part.offset_bytes && offset < part.offset_bytes + part.size_bytes);
    return [inside ?? parts.find((part) => Math.abs(part.offset_bytes - offset) < slack) ?? null, run.segment];
  }

  paint(g, width) {
    if (!this.facts) return;
    if (this.laid !== width) this.layOut(width);
    g.textBaseline = "middle";
    g.textAlign = "left";
    g.fillStyle = ink("faint");
    for (const { y, text } of this.heads) g.fillText(text, 0, y + HEAD_PX / 2);
    for (const run of this.runs) this.paintRun(g, run);
  }

  paintRun(g, run) {
    const { segment, from, bytes, x, y, width } = run;
    g.fillStyle = ink("hover");
    g.fillRect(x, y, width, LINE_PX);
    const px = (offset) => x + Math.min(Math.max(offset - from, 0), bytes) * this.scale;
    for (const part of this.parts.get(segment.segment) ?? []) {
      const end = part.offset_bytes + part.size_bytes;
      if (part.kind === HOLE || end <= from || part.offset_bytes >= from + bytes) continue;
      const left = px(part.offset_bytes);
      const wide = px(end) - left;
      const asked = px(part.offset_bytes + part.requested_bytes) - left;
      g.fillStyle = this.colour(part);
      g.fillRect(left, y, asked, LINE_PX);
      g.globalAlpha = 0.45;
      g.fillRect(left + asked, y, wide - asked, LINE_PX);
      g.globalAlpha = 1;
      if (part.kind === PENDING) {
        g.strokeStyle = ink("card");
        g.lineWidth = 1.5;
        hatchBox(g, { x: left, y, width: wide, height: LINE_PX }, HATCH_PX);
        g.lineWidth = 1;
      }
      if (wide > 3) {
        g.fillStyle = ink("card");
        g.fillRect(left + wide - 0.5, y, 0.5, LINE_PX);
      }
      if (this.marked !== null && part.block === this.marked) {
        g.strokeStyle = ink("accent");
        g.lineWidth = 2;
        g.strokeRect(left, y, Math.max(wide, 2), LINE_PX);
        g.lineWidth = 1;
      }
    }
    g.strokeStyle = ink(segment.is_known ? "faint" : "line");
    g.setLineDash(segment.is_expandable ? [4, 2] : []);
    if (width > 3) g.strokeRect(x + 0.5, y + 0.5, width - 1, LINE_PX - 1);
    g.setLineDash([]);
  }

  destroy() {
    this.surface.destroy();
  }
}

// What a part is, in words: lines for a tip.
export function partLines(part, segment) {
  const of = `${segment.is_expandable ? "expandable segment" : "segment"} ${segment.address} of ${units.bytes(segment.size_bytes)}`;
  const where = segment.is_known ? `in ${of}` : "in a segment that is not recorded";
  if (!part) return [`${of}, its parts too small to be sent`];
  if (part.kind === HOLE) return [`${units.bytes(part.size_bytes)} unused`, `from ${part.address}`, where];
  const rounded = part.size_bytes - part.requested_bytes;
  const loss = rounded ? `takes ${units.bytes(part.size_bytes)}, ${units.bytes(rounded)} by rounding` : "";
  return [
    `${units.bytes(part.requested_bytes)} · ${part.operator ?? "no operator"}`,
    part.kind === PENDING ? "freed, but a stream may still use it" : null,
    part.category,
    part.line,
    part.kind === BLOCK || loss ? loss : null,
    `at ${part.address}, ${where}`,
  ].filter(Boolean);
}

function headOf(segments, bytes) {
  const [{ pool, stream, is_known: known }] = segments;
  if (!known) return "blocks outside of recorded segments, by address";
  const which = pool === null ? "default pool" : `private pool ${pool}`;
  const many = segments.length === 1 ? "1 segment" : `${units.count(segments.length)} segments`;
  return `${which} · stream ${stream} · ${many} · ${units.bytes(bytes)}`;
}
