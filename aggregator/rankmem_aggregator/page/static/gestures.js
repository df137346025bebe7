// What a pointer does on a canvas with an axis of time: wheel zooms at the pointer, dragging marks a range,
// shift and dragging moves it, a double click goes back, a click picks. All of them change the state's from and to.

import * as state from "./state.js";

const LEAST_NS = 100;
const ZOOM = 1.25;
const CLICK_PX = 4;

// Attaches to a surface. `box()` is where the data are, `range()` the [from, to] drawn, `limits()` the whole;
// `timeAt(x)` is the time at a pixel where the axis is not one of time;
// `hover(x, y)` and `leave()` follow the pointer, `pick(x, y, event)` is a click, `brush(x0, x1)` a drag in progress (null: over).
export function timeGestures(surface, { box, range, limits, timeAt: timeOf, hover, leave, pick, brush }) {
  const { canvas } = surface;
  let begun = null;
  const at = (event) => {
    const place = canvas.getBoundingClientRect();
    return [event.clientX - place.left, event.clientY - place.top];
  };
  const timeAt = timeOf ?? ((x) => {
    const [from, to] = range();
    const inside = box();
    return from + ((x - inside.x) / inside.width) * (to - from);
  });
  const listen = (name, listener, options) => canvas.addEventListener(name, listener, options);

  listen(
    "wheel",
    (event) => {
      event.preventDefault();
      const [from, to] = range();
      const middle = timeAt(at(event)[0]);
      const factor = event.deltaY > 0 ? ZOOM : 1 / ZOOM;
      setRange(middle - (middle - from) * factor, middle + (to - middle) * factor, limits(), { within: true });
    },
    { passive: false },
  );
  listen("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    const [x, y] = at(event);
    begun = { x, y, range: range(), pans: event.shiftKey };
  });
  listen("pointermove", (event) => {
    const [x, y] = at(event);
    if (!begun) {
      hover?.(x, y);
    } else if (begun.pans) {
      const [from, to] = begun.range;
      const by = ((begun.x - x) / box().width) * (to - from);
      setRange(from + by, to + by, limits(), { within: true });
    } else {
      brush?.(begun.x, x);
    }
  });
  listen("pointerup", (event) => {
    if (!begun) return;
    const [x, y] = at(event);
    const first = begun;
    begun = null;
    brush?.(null, null);
    if (Math.abs(x - first.x) < CLICK_PX) pick?.(x, y, event);
    else if (!first.pans) setRange(Math.min(timeAt(first.x), timeAt(x)), Math.max(timeAt(first.x), timeAt(x)), limits());
  });
  listen("pointerleave", () => leave?.());
  listen("dblclick", () => zoomOut(range(), limits()));
  listen("keydown", (event) => {
    const [from, to] = range();
    const moves = { ArrowLeft: -0.1, ArrowRight: 0.1 };
    if (event.key in moves && !event.altKey) {
      const by = moves[event.key] * (to - from);
      setRange(from + by, to + by, limits(), { within: true });
    } else if (event.key === "+" || event.key === "=") {
      setRange(from + (to - from) * 0.1, to - (to - from) * 0.1, limits());
    } else if (event.key === "-") {
      zoomOut([from, to], limits());
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  });
}

// The pointer alone, on a surface without an axis of time.
export function hoverAlone({ canvas }, { hover, leave }) {
  canvas.addEventListener("pointermove", (event) => {
    const place = canvas.getBoundingClientRect();
    hover?.(event.clientX - place.left, event.clientY - place.top);
  });
  canvas.addEventListener("pointerleave", () => leave?.());
}

// Sets the state's range to whole ns within the limits; the whole is no range at all.
export function setRange(from, to, [first, last], options = {}) {
  const length = Math.min(Math.max(to - from, LEAST_NS), last - first);
  const begin = Math.round(Math.min(Math.max(from, first), last - length));
  const end = Math.round(begin + length);
  const whole = begin <= first && end >= last;
  state.change({ from: whole ? null : begin, to: whole ? null : end }, options);
}

// Twice the range around its middle.
export function zoomOut([from, to], limits) {
  const half = (to - from) / 2;
  setRange(from - half, to + half, limits);
}
