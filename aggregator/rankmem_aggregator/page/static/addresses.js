// The axis of addresses left of the block map: its texts, and the part of the addresses that is shown. On the axis the
// wheel zooms at the pointer, dragging marks a part, shift and dragging moves it, a double click shows all; with the
// keyboard the arrows up and down move, Page Up and Page Down zoom. The part stands in the state as FROM-TO.

import { line } from "./axes.js";
import * as state from "./state.js";
import { ink } from "./theme.js";

const KEY = "mapa";
const ZOOM = 1.25;
const LEAST_BYTES = 512;
const CLICK_PX = 4;
const TEXT_PX = 14;
const DRAGS = ["pointermove", "pointerup"];

// The part of the addresses that the state has, as parameters of /map.
export function addressParameters() {
  const found = state.read(KEY, (text) => /^(0x[0-9a-f]{1,16})-(0x[0-9a-f]{1,16})$/i.exec(text), "all addresses are shown");
  return found ? { address_from: found[1], address_to: found[2] } : {};
}

// Shows all addresses.
export function allAddresses() {
  state.change({ [KEY]: null });
}

// Shows the bytes from low to high, counted from the lower edge of what is shown.
function show({ low_bytes: below, space_bytes: total, ranges }, low, high, options) {
  const length = Math.min(Math.max(Math.round(high - low), LEAST_BYTES), total);
  const begin = Math.min(Math.max(Math.round(low), -below), total - below - length);
  const whole = begin <= -below && length >= total;
  const text = () => `${addressAt(ranges, begin)}-${addressAt(ranges, begin + length, true)}`;
  state.change({ [KEY]: whole ? null : text() }, options);
}

// The address at so many bytes above the lower edge; as an end it belongs to the range below it.
function addressAt(ranges, offset, isEnd = false) {
  const range = ranges.findLast((each) => (isEnd ? each.offset < offset : each.offset <= offset)) ?? ranges[0];
  const within = Math.min(Math.max(offset - range.offset, 0), range.bytes);
  return `0x${(BigInt(range.address) + BigInt(within)).toString(16)}`;
}

// Attaches to a surface, before what else its gestures do: box() is where the blocks are, facts() those of the answer,
// brush(y0, y1) a drag in progress (null: over).
export function addressGestures({ canvas }, { box, facts, brush }) {
  let begun = null;
  const at = (event) => {
    const place = canvas.getBoundingClientRect();
    return [event.clientX - place.left, event.clientY - place.top];
  };
  const isOn = (x) => facts()?.kind === "address" && facts().ranges.length > 0 && x < box().x;
  const bytesAt = (y) => ((box().y + box().height - y) / box().height) * facts().height_bytes;
  // Handles an event on the axis, or of a drag that began there, and keeps it from the gestures of time.
  const listen = (name, handle, options) =>
    canvas.addEventListener(
      name,
      (event) => {
        const [x, y] = at(event);
        if (!begun) canvas.style.cursor = isOn(x) ? "ns-resize" : "";
        if (!begun && (DRAGS.includes(name) || !isOn(x))) return;
        event.stopImmediatePropagation();
        handle(event, y);
      },
      options,
    );

  listen(
    "wheel",
    (event, y) => {
      event.preventDefault();
      const factor = event.deltaY > 0 ? ZOOM : 1 / ZOOM;
      const [middle, high] = [bytesAt(y), facts().height_bytes];
      show(facts(), middle - middle * factor, middle + (high - middle) * factor, { within: true });
    },
    { passive: false },
  );
  listen("pointerdown", (event, y) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    begun = { y, facts: facts(), bytes: bytesAt(y), pans: event.shiftKey };
  });
  listen("pointermove", (event, y) => {
    if (begun.pans) {
      const by = ((y - begun.y) / box().height) * begun.facts.height_bytes;
      show(begun.facts, by, begun.facts.height_bytes + by, { within: true });
    } else {
      brush(begun.y, y);
    }
  });
  listen("pointerup", (event, y) => {
    const first = begun;
    begun = null;
    brush(null, null);
    if (first.pans || Math.abs(y - first.y) < CLICK_PX) return;
    show(facts(), Math.min(first.bytes, bytesAt(y)), Math.max(first.bytes, bytesAt(y)));
  });
  listen("dblclick", () => allAddresses());
  canvas.addEventListener("keydown", (event) => {
    if (facts()?.kind !== "address" || !facts().ranges.length) return;
    const high = facts().height_bytes;
    const moves = { ArrowUp: [0.1, 1.1], ArrowDown: [-0.1, 0.9], PageUp: [0.1, 0.9], PageDown: [-0.5, 1.5] };
    if (!(event.key in moves)) return;
    const [low, to] = moves[event.key];
    show(facts(), low * high, to * high);
    event.preventDefault();
    event.stopPropagation();
  });
}

// The first address of each range that has room for it, or of what is shown, and lines where a gap between addresses is
// left out.
export function drawAddressAxis(g, box, { ranges, height_bytes: high }) {
  g.fillStyle = ink("faint");
  g.strokeStyle = ink("line");
  g.textAlign = "right";
  g.textBaseline = "middle";
  const shown = ranges.filter(({ offset, bytes }) => offset + bytes > 0 && offset < high);
  const few = shown.length <= box.height / 6;
  let last = Infinity;
  for (const { address, offset } of shown) {
    const y = box.y + box.height - (Math.max(offset, 0) / high) * box.height;
    if (few && offset >= 0) line(g, box.x, y, box.x + box.width, y);
    if (last - y < TEXT_PX) continue;
    g.fillText(offset < 0 ? addressAt(ranges, 0) : address, box.x - 6, Math.max(y - 6, box.y + 6));
    last = y;
  }
  if (shown.length && last - box.y > 2 * TEXT_PX) g.fillText(addressAt(ranges, high, true), box.x - 6, box.y + 6);
}
