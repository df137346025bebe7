// The whole of a rank's time in a low strip: a drag chooses the range that the diagrams above show, a drag of the
// chosen part moves it.

import { boxOf } from "./axes.js";
import { setRange, zoomOut } from "./gestures.js";
import { Surface } from "./surface.js";
import { ink } from "./theme.js";

const CLICK_PX = 3;

export class Overview {
  constructor(parent, { height = 36, label, range, limits }) {
    Object.assign(this, { range, limits, times: [], values: [], begun: null });
    this.surface = new Surface(parent, { height, label, paint: (g) => this.paint(g) });
    const { canvas } = this.surface;
    const at = (event) => event.clientX - canvas.getBoundingClientRect().left;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      const [from, to] = this.range();
      const time = this.timeAt(at(event));
      const [first, last] = this.limits();
      const isWhole = from <= first && to >= last;
      this.begun = { x: at(event), time, range: [from, to], moves: !isWhole && time >= from && time <= to };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.begun || Math.abs(at(event) - this.begun.x) < CLICK_PX) return;
      const { time, range: [from, to], moves } = this.begun;
      const now = this.timeAt(at(event));
      const chosen = moves ? [from + now - time, to + now - time] : [Math.min(time, now), Math.max(time, now)];
      setRange(...chosen, this.limits(), { within: true });
    });
    canvas.addEventListener("pointerup", () => (this.begun = null));
    canvas.addEventListener("dblclick", () => zoomOut([...this.limits()], this.limits()));
    canvas.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      const [from, to] = this.range();
      setRange(from + (by * (to - from)) / 2, to + (by * (to - from)) / 2, this.limits());
      event.preventDefault();
      event.stopPropagation();
    });
  }

  set(times, values) {
    Object.assign(this, { times, values });
    this.surface.draw();
  }

  get box() {
    return boxOf(this.surface.width, this.surface.height, { top: 2, bottom: 2 });
  }

  timeAt(x) {
    const [first, last] = this.limits();
    return first + ((x - this.box.x) / this.box.width) * (last - first);
  }

  paint(g) {
    const box = this.box;
    const [first, last] = this.limits();
    const x = (time) => box.x + ((time - first) / (last - first)) * box.width;
    const highest = this.values.reduce((a, b) => (b > a ? b : a), 1);
    const y = (value) => box.y + box.height * (1 - value / highest);
    g.fillStyle = `${ink("faint")}55`;
    g.beginPath();
    g.moveTo(x(this.times[0] ?? first), y(0));
    for (let i = 0; i < this.times.length; i += 1) {
      g.lineTo(x(this.times[i]), y(this.values[i] ?? 0));
      g.lineTo(x(this.times[i + 1] ?? last), y(this.values[i] ?? 0));
    }
    g.lineTo(x(last), y(0));
    g.fill();
    const [from, to] = this.range();
    g.fillStyle = `${ink("sel")}33`;
    const width = Math.max(2, x(to) - x(from));
    g.fillRect(x(from), box.y, width, box.height);
    g.strokeStyle = ink("sel");
    g.strokeRect(x(from) + 0.5, box.y + 0.5, width - 1, box.height - 1);
  }

  destroy() {
    this.surface.destroy();
  }
}
