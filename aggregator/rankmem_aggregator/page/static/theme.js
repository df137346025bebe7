// Dark, light, or as the system has it; and the colours of the style sheet, for canvases.

const CHOICES = ["system", "light", "dark"];
const listeners = new Set();
let cached = new Map();

export function theme() {
  return CHOICES.includes(localStorage.getItem("rankmem-theme")) ? localStorage.getItem("rankmem-theme") : "system";
}

export function nextTheme() {
  const next = CHOICES[(CHOICES.indexOf(theme()) + 1) % CHOICES.length];
  localStorage.setItem("rankmem-theme", next);
  apply();
  return next;
}

// Whether the page is laid out for paper, which is light.
export function isPrinting() {
  return document.body.classList.contains("printing");
}

export function isDark() {
  return document.documentElement.dataset.theme === "dark";
}

// A colour of the style sheet, such as "ink".
export function ink(name) {
  if (!cached.has(name)) {
    cached.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  }
  return cached.get(name);
}

export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function apply() {
  const dark = theme() === "dark" || (theme() === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark && !isPrinting() ? "dark" : "light";
  cached = new Map();
  for (const listener of [...listeners]) listener();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
