// Quantities as people type them: "1.5 MiB", "20 ms", "+58.9 s". Each returns null for what is no such quantity.

const BYTES = { "": 1, b: 1, k: 1024, kb: 1024, kib: 1024, m: 1024 ** 2, mb: 1024 ** 2, mib: 1024 ** 2, g: 1024 ** 3, gb: 1024 ** 3, gib: 1024 ** 3, t: 1024 ** 4, tb: 1024 ** 4, tib: 1024 ** 4 };
const TIMES = { ns: 1, us: 1e3, "µs": 1e3, ms: 1e6, "": 1e9, s: 1e9, min: 60e9, h: 3600e9 };

// Bytes, in whole numbers.
export function bytes(text) {
  return quantity(text, BYTES);
}

// A length of time or an instant since the session's start, in ns; a bare number is in seconds.
export function time(text) {
  return quantity(text, TIMES);
}

function quantity(text, factors) {
  const found = /^\s*([+−-]?)\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zµ]*)\s*$/i.exec(text.replaceAll(",", ""));
  const factor = found && factors[found[3].toLowerCase()];
  if (!factor) return null;
  const value = Math.round(Number(found[2]) * factor);
  return Number.isSafeInteger(value) ? (found[1] && found[1] !== "+" ? -value : value) : null;
}
