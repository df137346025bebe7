// Quantities as text. Bytes are exact to the end: only here are they rounded. MindStudio's units are MB and ms.

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
export const NOTHING = "–";

// The units that there are; mindstudio: MB of 2^20 bytes and ms.
export const STYLES = ["rankmem", "mindstudio"];

let style = STYLES[0];

export function setStyle(name) {
  style = name;
}

export function isMindStudio() {
  return style === "mindstudio";
}

// 38.28 GiB; a negative number keeps its sign.
export function bytes(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return NOTHING;
  if (style === "mindstudio") return `${(value / 2 ** 20).toFixed(2)} MB`;
  let power = 0;
  while (power < BINARY.length - 1 && Math.abs(value) >= 1024 ** (power + 1)) power += 1;
  return power ? `${(value / 1024 ** power).toFixed(2)} ${BINARY[power]}` : `${value} B`;
}

// A round amount, for an axis: without decimals that are 0.
export function roundBytes(value) {
  return bytes(value).replace(/\.0+(?= )|(\.\d*[1-9])0+(?= )/, "$1");
}

// The same with a sign, for differences.
export function signedBytes(value) {
  return value < 0 ? `−${bytes(-value)}` : value > 0 ? `+${bytes(value)}` : bytes(value);
}

// 1,234,567
export function count(value) {
  return value === null || value === undefined ? NOTHING : Math.round(value).toLocaleString("en-US");
}

// 1 rank, 2,048 ranks: a count with its noun, whose plural ends in s.
export function counted(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

// A time since the session's start, ns: +58.912345 s, +1:02:03.456; `step` ns decides the digits.
export function time(ns, step = 1000) {
  if (ns === null || ns === undefined) return NOTHING;
  if (style === "mindstudio") return `${(ns / 1e6).toFixed(3)} ms`;
  const digits = Math.max(0, Math.min(9, Math.ceil(9 - Math.log10(Math.max(step, 1)))));
  const unit = 10 ** (9 - digits);
  const sign = Math.round(ns / unit) < 0 ? "−" : "+";
  const s = Math.abs(ns) / 1e9;
  if (s < 120) return `${sign}${s.toFixed(digits)} s`;
  const whole = Math.round(Math.abs(ns) / unit) * unit; // rounded before it is split: never 60 s
  const minutes = Math.floor(whole / 60e9);
  const rest = ((whole - 60e9 * minutes) / 1e9).toFixed(digits).padStart(digits ? 3 + digits : 2, "0");
  return minutes < 60
    ? `${sign}${minutes}:${rest}`
    : `${sign}${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${rest}`;
}

// A length of time, ns: 12.3 ms
export function duration(ns) {
  if (ns === null || ns === undefined) return NOTHING;
  if (style === "mindstudio") return `${(ns / 1e6).toFixed(3)} ms`;
  if (ns < 0) return `−${duration(-ns)}`;
  if (ns < 1e3) return `${ns} ns`;
  if (ns < 1e6) return `${(ns / 1e3).toFixed(1)} µs`;
  if (ns < 1e9) return `${(ns / 1e6).toFixed(1)} ms`;
  if (ns < 120e9) return `${(ns / 1e9).toFixed(2)} s`;
  if (ns < 7200e9) return `${(ns / 60e9).toFixed(1)} min`;
  return `${(ns / 3600e9).toFixed(1)} h`;
}

// 12.3 %
export function share(value) {
  return value === null || value === undefined ? NOTHING : `${(100 * value).toFixed(1)} %`;
}

// A block's or frame's address.
export function address(value) {
  return value === null || value === undefined ? NOTHING : `0x${value.toString(16)}`;
}
