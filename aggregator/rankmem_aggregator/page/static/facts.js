// What the page shares with rankmem's Python. Made by tests/tools/page_facts.py (make docs).

// What blocks can be grouped by, and the words for it.
export const BLOCK_GROUPINGS = [
  ["category", "category"],
  ["operator", "operator"],
  ["module", "module"],
  ["line", "source line"],
  ["stream", "stream"],
  ["component", "component"],
  ["phase", "phase"],
  ["step", "training step"],
  ["annotation", "annotation"],
];
// Ranks of a request of /cell at most.
export const CELL_RANKS_MAX = 256;
// Intervals of time of a diagram of cells at most.
export const CELLS_MAX = 1024;
