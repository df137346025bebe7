// Paper: in light, as wide as a page, each diagram drawn anew for that width, and the link on top of it.

import { drawAll } from "./surface.js";
import * as theme from "./theme.js";

const media = matchMedia("print");

function prepare() {
  const place = document.getElementById("printed");
  place.textContent = `${document.title} · ${location.href}`;
  document.body.classList.add("printing");
  theme.apply();
  drawAll();
}

function restore() {
  document.body.classList.remove("printing");
  theme.apply();
  drawAll();
}

// Browsers differ in which of these they report first.
addEventListener("beforeprint", prepare);
addEventListener("afterprint", restore);
media.addEventListener("change", () => (media.matches ? prepare() : restore()));
