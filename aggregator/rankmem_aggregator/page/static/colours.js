// Colours that people with any colour vision tell apart: Okabe and Ito's for categories, viridis for amounts,
// blue to orange for differences.

import { isDark } from "./theme.js";

const CATEGORY = {
  parameter: "#0072b2",
  optimizer_state: "#56b4e9",
  gradient: "#009e73",
  input: "#b8a13a",
  activation: "#e69f00",
  temporary: "#d55e00",
  autograd_detail: "#cc79a7",
  kv_cache: "#6a51a3",
  "before the recording": "#a6761d",
  unknown: "#8c8c8c",
  others: "#b5b5b5",
};
const CYCLE = [
  "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a13a", "#6a51a3", "#7fa650", "#a6761d",
  "#4d8f9c", "#b35b74",
];
const given = new Map();

// The colour of a group by its name: a category's own; of any other name always the same.
export function colourOf(name) {
  const text = name ?? "unknown";
  if (CATEGORY[text]) return CATEGORY[text];
  if (!given.has(text)) {
    let hash = 0;
    for (let i = 0; i < text.length; i += 1) hash = (hash * 31 + text.charCodeAt(i)) >>> 0;
    given.set(text, CYCLE[hash % CYCLE.length]);
  }
  return given.get(text);
}

// Colours of a list of groups drawn together: categories' own, else one after the other, so that neighbours differ.
export function coloursOf(names) {
  const own = names.map((name) => CATEGORY[name ?? "unknown"]);
  const free = CYCLE.filter((colour) => !own.includes(colour));
  let next = 0;
  return own.map((colour) => colour ?? free[next++ % free.length]);
}

// Viridis at 16 places, between which colours are mixed.
const AMOUNT = [
  [68, 1, 84], [72, 26, 108], [71, 47, 125], [65, 68, 135], [57, 86, 140], [49, 104, 142], [42, 120, 142],
  [35, 136, 142], [31, 152, 139], [34, 168, 132], [53, 183, 121], [84, 197, 104], [122, 209, 81], [165, 219, 54],
  [210, 226, 27], [253, 231, 37],
];
const LESS = [[33, 102, 172], [67, 147, 195], [146, 197, 222]];
const MORE = [[253, 190, 112], [230, 121, 32], [166, 54, 3]];

function mixed(stops, at) {
  const place = Math.max(0, Math.min(1, at)) * (stops.length - 1);
  const i = Math.min(stops.length - 2, Math.floor(place));
  return stops[i].map((from, k) => Math.round(from + (stops[i + 1][k] - from) * (place - i)));
}

// 256 colours [r, g, b] for cells of 1 to 255; 0, nothing known, is the card's own.
export function ramp(kind) {
  const none = isDark() ? [23, 27, 33] : [255, 255, 255];
  const middle = isDark() ? [52, 58, 66] : [238, 240, 242];
  const [less, more] = isDark() ? [LESS.toReversed(), MORE.toReversed()] : [LESS, MORE]; // the extremes stand out from the card
  const stops = kind === "difference" ? [...less, middle, ...more] : AMOUNT;
  return Array.from({ length: 256 }, (_, i) => (i === 0 ? none : mixed(stops, (i - 1) / 254)));
}
