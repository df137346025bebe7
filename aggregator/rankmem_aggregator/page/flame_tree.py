"""Paths with bytes as a tree that a browser can draw: bounded, the largest first.

Stage: page, in the thread of a request. In: paths from the outermost frame to the innermost, with bytes and
blocks; out: nodes in depth-first order. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

NODES_MAX: Final = 20_000
"""Of a flame graph: what a canvas draws in 16 ms, five times over."""
ROOT: Final = "all"


class Step(NamedTuple):
    """A level of a path."""

    kind: str
    """frame, module, operator, category, none (what has no such), others (what is too small to be drawn)."""
    name: str


@dataclass(slots=True)
class Node:
    """What all paths that begin alike hold together."""

    step: Step
    bytes: int = 0
    blocks: int = 0
    children: dict[Step, Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """A tree, columns of its nodes in depth-first order, children by size."""

    parent: list[int]
    """-1 for the root."""
    kind: list[str]
    name: list[str]
    bytes: list[int]
    blocks: list[int]
    min_share: float
    """What is smaller was added to its parent's node of kind others."""


def merged(path: Sequence[Step], recursion: str) -> Sequence[Step]:
    """A path with its recursion merged.

    Args:
        recursion: ``keep``; ``direct``: a frame that calls itself is drawn once; ``all``: a path goes on at a
            frame's first occurrence, what lies between is left out.
    """
    if recursion == "keep":
        return path
    found: list[Step] = []
    for step in path:
        if recursion == "direct":
            if not found or found[-1] != step:
                found.append(step)
        elif step in found:
            del found[found.index(step) + 1 :]
        else:
            found.append(step)
    return found


def tree_of(paths: Iterable[tuple[Sequence[Step], int, int]]) -> Node:
    """The tree of (path, bytes, blocks)."""
    root = Node(Step("root", ROOT))
    for path, size, blocks in paths:
        node = root
        node.bytes += size
        node.blocks += blocks
        for step in path:
            child = node.children.get(step)
            if child is None:
                child = node.children[step] = Node(step)
            child.bytes += size
            child.blocks += blocks
            node = child
    return root


def bounded(root: Node, min_share: float, most: int = NODES_MAX) -> Nodes:
    """The nodes to draw: none below a share of the root, and at most so many; what is smaller is pooled."""
    while True:
        nodes = _listed(root, min_share, most)
        if nodes is not None:
            return nodes
        min_share = max(min_share * 1.5, 1e-6)


def _listed(root: Node, min_share: float, most: int) -> Nodes | None:
    """Depth-first without recursion: a stack of Python may be deeper than Python's own limit."""
    least = root.bytes * min_share
    found = Nodes(parent=[], kind=[], name=[], bytes=[], blocks=[], min_share=min_share)
    waiting: list[tuple[int, Node]] = [(-1, root)]
    while waiting:
        parent, node = waiting.pop()
        place = len(found.parent)
        if place >= most:
            return None
        found.parent.append(parent)
        found.kind.append(node.step.kind)
        found.name.append(node.step.name)
        found.bytes.append(node.bytes)
        found.blocks.append(node.blocks)
        if len(node.children) == 1 and node.bytes >= least:  # most nodes of a deep stack
            child = next(iter(node.children.values()))
            if child.bytes >= least:
                waiting.append((place, child))
                continue
        large = [child for child in node.children.values() if child.bytes >= least]
        small = [child for child in node.children.values() if child.bytes < least]
        large.sort(key=lambda child: (-child.bytes, child.step))
        if small:
            rest = Node(Step("others", f"{len(small):,} smaller"))
            rest.bytes = sum(child.bytes for child in small)
            rest.blocks = sum(child.blocks for child in small)
            large.append(rest)
        waiting += [(place, child) for child in reversed(large)]
    return found
