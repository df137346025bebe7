// An axis of training steps, and what a pointer does on a diagram that has one.

import { line } from "./axes.js";
import { ink } from "./theme.js";

// The axis of steps below a box: round numbers.
export function drawStepAxis(g, box, { first_steps: steps }) {
  const most = Math.max(2, box.width / 70);
  const every = [1, 2, 5].flatMap((factor) => [0, 1, 2, 3, 4, 5, 6].map((power) => factor * 10 ** power)).sort((a, b) => a - b);
  const span = steps.at(-1) - steps[0] + 1;
  const stride = every.find((each) => span / each <= most) ?? span;
  g.fillStyle = ink("faint");
  g.strokeStyle = ink("line");
  g.textAlign = "center";
  g.textBaseline = "top";
  steps.forEach((step, bin) => {
    const before = bin ? steps[bin - 1] : step - 1;
    if (Math.floor(step / stride) === Math.floor(before / stride)) return;
    const x = box.x + ((bin + 0.5) / steps.length) * box.width;
    line(g, x, box.y + box.height, x, box.y + box.height + 4);
    g.fillText(`${bin === 0 ? "step " : ""}${step}`, x, box.y + box.height + 5);
  });
}

// What a pointer does on a diagram without an axis of time: it shows, and picks.
export function hoverAndPick(surface, { hover, leave, pick }) {
  const at = (event) => {
    const place = surface.canvas.getBoundingClientRect();
    return [event.clientX - place.left, event.clientY - place.top];
  };
  surface.canvas.addEventListener("pointermove", (event) => hover(...at(event)));
  surface.canvas.addEventListener("pointerleave", () => leave());
  surface.canvas.addEventListener("click", (event) => pick(...at(event)));
}
