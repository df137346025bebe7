"use strict";
// Draws the curves of each chart of the page. A value holds from its instant to the next, so each pixel column
// shows the instant in it at which the visible curves stood highest: no maximum is lost at any zoom.
function drawChart(root) {
  const part = name => root.querySelector("." + name);
  const data = JSON.parse(part("data").textContent);
  const { times_ns: times, series, stacked } = data;
  const canvas = part("chart"), tip = part("tip");
  const pen = canvas.getContext("2d");
  const first = times.length ? times[0] : 0;
  const last = times.length ? Math.max(times[times.length - 1], first + 1) : 1;
  const pad = { left: 78, right: 14, top: 14, bottom: 30 };
  const hidden = new Set();
  let from = first, to = last, cursor = null, dragStart = null;

  const visible = () => series.filter((_, i) => !hidden.has(i));
  const topAt = (shown, i) => stacked
    ? shown.reduce((sum, one) => sum + one.bytes[i], 0)
    : shown.reduce((most, one) => Math.max(most, one.bytes[i]), 0);

  /** Position of the last instant at or before a time; -1 before the first. */
  function at(time) {
    let low = 0, high = times.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (times[middle] <= time) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  function unitOf(bytes) {
    let power = 0;
    while (power < UNITS.length - 1 && bytes >= 1024 ** (power + 1)) power++;
    return power;
  }
  function bytesText(bytes, power = unitOf(bytes)) {
    return power ? `${(bytes / 1024 ** power).toFixed(2)} ${UNITS[power]}` : `${bytes} B`;
  }
  function timeText(ns, digits = 3) {
    const sign = ns < 0 ? "-" : "+", seconds = Math.abs(ns) / 1e9;
    const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
    const rest = (seconds - minutes * 60).toFixed(digits);
    if (!minutes) return `${sign}${rest} s`;
    const padded = rest.padStart(digits ? digits + 3 : 2, "0");
    return hours ? `${sign}${hours}:${String(minutes % 60).padStart(2, "0")}:${padded}` : `${sign}${minutes}:${padded}`;
  }
  function niceStep(span, count, sixty) {
    const rough = span / count;
    if (sixty && rough > 30) {
      for (const step of [60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400]) if (step >= rough) return step;
    }
    const ten = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map(n => n * ten).find(step => step >= rough);
  }

  /** For each pixel column the position of the instant that it shows; -1 where nothing was known yet. */
  function columns(width) {
    const shown = visible(), picked = new Int32Array(width);
    for (let x = 0; x < width; x++) {
      let best = at(from + (to - from) * x / width);
      const end = at(from + (to - from) * (x + 1) / width);
      let most = best < 0 ? -1 : topAt(shown, best);
      for (let i = Math.max(best + 1, 0); i <= end; i++) {
        const top = topAt(shown, i);
        if (top > most) { most = top; best = i; }
      }
      picked[x] = best;
    }
    return picked;
  }

  function draw() {
    const ratio = devicePixelRatio || 1, box = canvas.getBoundingClientRect();
    canvas.width = Math.round(box.width * ratio);
    canvas.height = Math.round(box.height * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const width = Math.max(1, Math.round(box.width - pad.left - pad.right));
    const height = Math.max(1, Math.round(box.height - pad.top - pad.bottom));
    const shown = visible(), picked = columns(width);
    let most = 1;
    for (const i of picked) if (i >= 0) most = Math.max(most, topAt(shown, i));
    const power = unitOf(most), unit = 1024 ** power;
    const step = niceStep(most / unit, 5) * unit, top = most * 1.04;
    const y = bytes => pad.top + height - bytes / top * height;
    const style = getComputedStyle(document.documentElement);
    const ink = name => style.getPropertyValue(name);
    pen.clearRect(0, 0, box.width, box.height);
    pen.font = "12px system-ui, sans-serif";
    drawScale(width, height, { y, step, top, unit, power, ink });
    (stacked ? drawAreas : drawLines)(shown, picked, y);
    drawCursor(width, height, ink);
    canvas.dataset.columns = width;
  }

  function drawScale(width, height, { y, step, top, unit, power, ink }) {
    pen.strokeStyle = ink("--line"); pen.fillStyle = ink("--faint"); pen.lineWidth = 1;
    pen.textAlign = "right"; pen.textBaseline = "middle";
    const digits = step / unit < 0.1 ? 2 : step / unit < 1 ? 1 : 0;
    for (let bytes = 0; bytes <= top; bytes += step) {
      const level = Math.round(y(bytes)) + .5;
      pen.beginPath(); pen.moveTo(pad.left, level); pen.lineTo(pad.left + width, level); pen.stroke();
      pen.fillText(`${(bytes / unit).toFixed(digits)} ${UNITS[power]}`, pad.left - 8, level);
    }
    pen.textAlign = "center"; pen.textBaseline = "top";
    const seconds = (to - from) / 1e9, tick = niceStep(seconds, Math.max(2, width / 130), true);
    const places = Math.min(9, Math.max(0, -Math.floor(Math.log10(tick) + 1e-9)));
    for (let n = Math.ceil(from / 1e9 / tick); n * tick <= to / 1e9; n++) {
      const x = pad.left + (n * tick * 1e9 - from) / (to - from) * width;
      pen.beginPath(); pen.moveTo(x, pad.top + height); pen.lineTo(x, pad.top + height + 5); pen.stroke();
      pen.fillText(timeText(n * tick * 1e9, places), x, pad.top + height + 9);
    }
  }

  function drawAreas(shown, picked, y) {
    picked.forEach((i, x) => {
      if (i < 0) return;
      let below = 0;
      for (const one of shown) {
        const above = below + one.bytes[i];
        pen.fillStyle = one.colour;
        if (above > below) pen.fillRect(pad.left + x, y(above), 1, y(below) - y(above));
        below = above;
      }
    });
  }

  function drawLines(shown, picked, y) {
    const width = picked.length;
    pen.lineWidth = 1.6; pen.lineJoin = "round";
    for (const one of shown) {
      pen.strokeStyle = one.colour;
      pen.beginPath();
      let started = false;
      for (let x = 0; x < width; x++) {
        const begin = at(from + (to - from) * x / width), end = at(from + (to - from) * (x + 1) / width);
        if (end < 0) continue;
        let low = Infinity, high = -Infinity;
        for (let i = Math.max(begin, 0); i <= end; i++) {
          low = Math.min(low, one.bytes[i]); high = Math.max(high, one.bytes[i]);
        }
        if (started) pen.lineTo(pad.left + x, y(one.bytes[Math.max(begin, 0)]));
        else pen.moveTo(pad.left + x, y(one.bytes[Math.max(begin, 0)]));
        started = true;
        if (low !== high) { pen.lineTo(pad.left + x, y(high)); pen.lineTo(pad.left + x, y(low)); }
        pen.lineTo(pad.left + x + 1, y(one.bytes[end]));
      }
      pen.stroke();
    }
  }

  function drawCursor(width, height, ink) {
    if (dragStart !== null && cursor !== null) {
      pen.fillStyle = ink("--faint"); pen.globalAlpha = .25;
      pen.fillRect(pad.left + Math.min(dragStart, cursor), pad.top, Math.abs(cursor - dragStart), height);
      pen.globalAlpha = 1;
    }
    if (cursor === null) return;
    pen.strokeStyle = ink("--ink");
    pen.beginPath();
    pen.moveTo(pad.left + cursor + .5, pad.top); pen.lineTo(pad.left + cursor + .5, pad.top + height);
    pen.stroke();
  }

  const plotWidth = () => Math.max(1, Math.round(canvas.getBoundingClientRect().width - pad.left - pad.right));

  function element(tag, text, name) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (name) made.className = name;
    return made;
  }

  /** The values at the pointer: those of the instant that its pixel column shows. */
  function showTip() {
    tip.hidden = cursor === null || !times.length;
    if (tip.hidden) return;
    const i = columns(plotWidth())[cursor];
    const time = i < 0 ? from + (to - from) * cursor / plotWidth() : Math.max(times[i], from);
    tip.replaceChildren(element("div", timeText(time, 6), "when"));
    if (i < 0) return;
    const shown = visible();
    for (const one of stacked ? [...shown].reverse() : shown) {
      const line = element("div"), name = element("span"), dot = element("i", "", "dot");
      dot.style.background = one.colour;
      name.append(dot, one.name);
      line.append(name, element("span", bytesText(one.bytes[i])));
      tip.append(line);
    }
    if (stacked) {
      const line = element("div", undefined, "whole");
      line.append(element("span", "together"), element("span", bytesText(topAt(shown, i))));
      tip.append(line);
    }
    const left = pad.left + cursor, room = canvas.getBoundingClientRect().width;
    tip.style.left = left + 16 + tip.offsetWidth < room ? `${left + 14}px` : `${Math.max(0, left - 14 - tip.offsetWidth)}px`;
  }

  /** Position of the highest value within the range; -1 where nothing was known. */
  function highest(valueAt) {
    let best = at(from);
    for (let i = Math.max(best, 0); i <= at(to); i++) if (best < 0 || valueAt(i) > valueAt(best)) best = i;
    return best;
  }

  function legendRow(name, valueAt, peak, mark) {
    const row = element("tr"), cell = element("td"), i = highest(valueAt);
    cell.append(mark);
    row.append(cell, element("td", i < 0 ? "-" : bytesText(valueAt(i))),
      element("td", i < 0 ? "-" : timeText(Math.max(times[i], from))),
      element("td", peak < 0 ? "-" : bytesText(valueAt(peak))));
    return row;
  }

  function legend() {
    const body = part("legend"), shown = visible();
    const peak = highest(i => topAt(shown, i));
    part("held").textContent = stacked ? "at the peak of all" : "when the highest peaked";
    const rows = series.map((one, number) => {
      const button = element("button"), dot = element("i", "", "dot");
      dot.style.background = one.colour;
      button.type = "button";
      button.append(dot, one.name);
      button.setAttribute("aria-pressed", String(!hidden.has(number)));
      button.onclick = () => {
        if (!hidden.delete(number)) hidden.add(number);
        update();
        root.querySelectorAll(".legend button")[stacked ? series.length - 1 - number : number].focus();
      };
      const row = legendRow(one.name, i => one.bytes[i], peak, button);
      row.classList.toggle("off", hidden.has(number));
      return row;
    });
    if (stacked) {  // as in the picture: the top first
      rows.reverse();
      rows.push(legendRow("together", i => topAt(shown, i), peak, element("span", "together")));
      rows[rows.length - 1].className = "whole";
    }
    body.replaceChildren(...rows);
  }

  function update() {
    part("range").textContent = times.length
      ? `${timeText(from)} to ${timeText(to)}, ${(at(to) - Math.max(at(from), 0) + 1).toLocaleString("en")} of `
        + `${data.instants.toLocaleString("en")} instants`
      : "no events";
    part("reset").hidden = from === first && to === last;
    draw(); legend(); showTip();
  }

  function zoom(newFrom, newTo) {
    if (newTo - newFrom < 1) return;
    from = Math.max(first, newFrom); to = Math.min(last, newTo); cursor = null;
    update();
  }

  const column = event => Math.min(plotWidth() - 1,
    Math.max(0, Math.round(event.clientX - canvas.getBoundingClientRect().left - pad.left)));
  const timeAt = x => Math.round(from + (to - from) * x / plotWidth());
  canvas.onpointermove = event => { cursor = column(event); draw(); showTip(); };
  canvas.onpointerdown = event => { dragStart = cursor = column(event); canvas.setPointerCapture(event.pointerId); };
  canvas.onpointerup = event => {
    const start = dragStart, end = column(event);
    dragStart = null;
    if (start !== null && Math.abs(end - start) > 4) zoom(timeAt(Math.min(start, end)), timeAt(Math.max(start, end)));
    else draw();
  };
  canvas.onpointerleave = () => { if (dragStart === null) { cursor = null; draw(); showTip(); } };
  canvas.ondblclick = () => zoom(first, last);
  canvas.onkeydown = event => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") zoom(first, last);
    if (!move) return;
    event.preventDefault();
    cursor = Math.min(plotWidth() - 1, Math.max(0, (cursor ?? 0) + move * (event.shiftKey ? 20 : 1)));
    draw(); showTip();
  };
  part("reset").onclick = () => zoom(first, last);
  matchMedia("(prefers-color-scheme: dark)").onchange = draw;
  new ResizeObserver(update).observe(canvas);
  update();
}
document.querySelectorAll(".memory-chart").forEach(drawChart);
