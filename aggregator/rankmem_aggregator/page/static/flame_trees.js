// Trees of frames as arrays in depth-first order, the largest child first. Pure functions.

// What a canvas needs of nodes {parent, kind, name, bytes, blocks}: begin (bytes left of it), depth, end (the place
// after its last descendant), total.
export function laidOut({ parent, kind, name, bytes, blocks }) {
  const count = parent.length;
  const begin = new Float64Array(count);
  const filled = new Float64Array(count);
  const depth = new Int32Array(count);
  const end = new Int32Array(count).fill(count);
  const open = [];
  let deepest = 0;
  for (let i = 0; i < count; i += 1) {
    const above = parent[i];
    if (above >= 0) {
      depth[i] = depth[above] + 1;
      begin[i] = begin[above] + filled[above];
      filled[above] += bytes[i];
    }
    deepest = Math.max(deepest, depth[i]);
    while (open.length && depth[open[open.length - 1]] >= depth[i]) end[open.pop()] = i;
    open.push(i);
  }
  return { parent, kind, name, bytes, blocks, begin, depth, end, deepest, total: count ? bytes[0] : 0, count };
}

// The names from the root's child to a node.
export function pathOf(tree, node) {
  const names = [];
  for (let i = node; i > 0; i = tree.parent[i]) names.unshift(tree.name[i]);
  return names;
}

// The nodes down a path of names from the root's children on; what is pooled there ends it. Empty where the tree has no
// such path.
export function nodesOf(tree, path) {
  const found = [];
  for (const name of path) {
    const above = found.at(-1) ?? 0;
    let next = -1;
    for (let i = above + 1; i < tree.end[above]; i = tree.end[i]) {
      if (tree.name[i] === name && tree.kind[i] !== "others") next = i;
      else if (tree.kind[i] === "others" && next < 0) next = i;
    }
    if (next < 0) return [];
    found.push(next);
    if (tree.kind[next] === "others") break;
  }
  return found;
}

// A path without its recursion, as merged() of page/flame_tree.py.
export function mergedPath(path, recursion) {
  const found = [];
  for (const name of path) {
    const before = recursion === "all" ? found.indexOf(name) : recursion === "direct" && found.at(-1) === name ? found.length - 1 : -1;
    if (before >= 0) found.length = before + 1;
    else found.push(name);
  }
  return found;
}

// The nodes with a name that are below no other one: their bytes together are those of the name.
export function outermost(tree, fits) {
  const found = [];
  for (let i = 1; i < tree.count; ) {
    if (fits(i)) {
      found.push(i);
      i = tree.end[i];
    } else {
      i += 1;
    }
  }
  return found;
}

// Around one frame: what called it, as a tree from the frame outwards, and what it called.
export function sandwich(tree, name) {
  const same = outermost(tree, (i) => tree.name[i] === name);
  const callers = newNode(name, "frame");
  const callees = newNode(name, "frame");
  for (const place of same) {
    grow(callees, tree, place);
    grow(callers, tree, place);
    let into = callers;
    for (let i = tree.parent[place]; i > 0; i = tree.parent[i]) {
      into = childOf(into, tree.name[i], tree.kind[i]);
      grow(into, tree, place);
    }
    merge(callees, tree, place);
  }
  return { callers: listed(callers), callees: listed(callees) };
}

function newNode(name, kind) {
  return { name, kind, bytes: 0, blocks: 0, children: new Map() };
}

function childOf(node, name, kind) {
  const key = `${kind} ${name}`;
  if (!node.children.has(key)) node.children.set(key, newNode(name, kind));
  return node.children.get(key);
}

function grow(node, tree, place) {
  node.bytes += tree.bytes[place];
  node.blocks += tree.blocks[place];
}

// Adds the subtree of a place below a node.
function merge(node, tree, place) {
  const nodes = new Map([[place, node]]);
  for (let i = place + 1; i < tree.end[place]; i += 1) {
    const child = childOf(nodes.get(tree.parent[i]), tree.name[i], tree.kind[i]);
    grow(child, tree, i);
    nodes.set(i, child);
  }
}

function listed(root) {
  const found = { parent: [], kind: [], name: [], bytes: [], blocks: [] };
  const waiting = [[root, -1]];
  while (waiting.length) {
    const [node, parent] = waiting.pop();
    const place = found.parent.length;
    found.parent.push(parent);
    for (const column of ["kind", "name", "bytes", "blocks"]) found[column].push(node[column]);
    const children = [...node.children.values()].sort((a, b) => a.bytes - b.bytes || (a.name < b.name ? 1 : -1));
    for (const child of children) waiting.push([child, place]);
  }
  return found;
}
