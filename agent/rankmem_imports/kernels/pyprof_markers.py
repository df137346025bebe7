"""PyProf's marker rule: a kernel's operator, layer and direction by the NVTX ranges around its launch.

Stage: readers, for nvprof and Nsight Systems; the process of ``rankmem import``. In: the texts of the
ranges that enclose a launch on its thread, in order of start; out: layer, call sites, operators, sequence
numbers. Pure functions; the texts are data from outside, read as Python literals and never run. Source:
NVIDIA PyProf 3.10, pyprof/parse (Apache-2.0), which gives the same answers; differences are in
docs/formats.md.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

LITERAL_CHARS_MAX: Final = 64 << 10
"""Of a marker's dictionary. PyProf's own, with a stack of 100 frames, have under 16 KiB."""
LITERAL_DEPTH_MAX: Final = 32
"""Brackets within brackets. PyProf's dictionaries have four; Python's parser is recursive."""

LITERALS_KEPT: Final = 10_000
"""Dictionaries kept once read: a training repeats them in every step."""

FORWARD: Final = "forward"
BACKWARD: Final = "backward"

NO_MODULE: Final = "na"
"""PyProf's word for an operator whose module no marker names."""

_LIBRARY_FRAMES: Final = (
    "/torch/nn/modules/", "/torch/nn/functional.py", "/torch/tensor.py", "/torch/autograd/__init__.py",
    "/torch/_jit_internal.py", "/pyprof/nvtx/nvmarker.py", "/apex/optimizers/", "/torch/_utils.py",
    "/torch/optim/",
)  # fmt: skip
_SEQUENCE: Final = re.compile(r", seq = (-?\d{1,18})")
_BACKWARD_MARKER: Final = re.compile(r"(?:[Bb]ackward|Backward0), seq = ")
_BACKWARD_NODE: Final = re.compile(r"[Bb]ackward, seq = ")
_NOT_THE_NAME: Final = ("torch", "autograd", "_backward", "::", "jit", "(anonymous namespace)")
_RECURRENT_CELLS: Final = ("LSTMCell", "GRUCell", "RNNCell")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """The content of the ranges around a launch, in PyProf's sorting."""

    layers: tuple[str, ...] = ()
    call_sites: tuple[str, ...] = ()
    representations: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    sequence_markers: tuple[str, ...] = ()
    sequence_ids: tuple[int, ...] = ()
    """Ascending; 0, for when autograd was not recording, only if there is no other."""
    operators: tuple[str, ...] = ()
    operator_modules: tuple[str, ...] = ()
    direction: str | None = None
    """None where nothing encloses the launch."""
    unread: int = 0
    """Dictionaries that are not Python literals, or exceed the bounds."""

    @property
    def takes_between(self) -> bool:
        """Whether the markers since the previous kernel count: no enclosing one is of backward."""
        return self.direction == FORWARD


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A kernel's place in autograd's order, by the kernels before it in the recording."""

    sequence_ids: tuple[int, ...]
    alternative_sequence_ids: tuple[int, ...]
    sub_sequence: int


def explain(texts: Sequence[str]) -> Explained:
    """The content of the ranges around a launch, given their texts, outermost first."""
    if not texts:
        return Explained()
    sorts: dict[str, list[str]] = {name: [] for name in ("marker", "layer", "trace", "repr", "seq", "other")}
    for text in texts:
        if "CheckpointFunctionBackward" not in text:
            sorts[_sort_of(text)].append(text)
    sequence_markers = pruned(sorts["seq"])
    numbers = sequence_numbers(sequence_markers)
    names, unread_names = _named_operators(sorts["marker"])
    sites, unread_sites = _call_sites(sorts["trace"])
    operators = names or _autograds_operators(sequence_markers, sorts["other"])
    return Explained(
        layers=tuple(text.split(":")[1] for text in sorts["layer"]),
        call_sites=sites,
        representations=tuple(sorts["repr"]),
        markers=tuple(sorts["marker"]),
        sequence_markers=sequence_markers,
        sequence_ids=tuple(n for n in numbers if n) or numbers,
        operators=tuple(name for name, _ in operators),
        operator_modules=tuple(module for _, module in operators),
        direction=BACKWARD if any(_BACKWARD_MARKER.search(m) for m in sequence_markers) else FORWARD,
        unread=unread_names + unread_sites,
    )


def is_about_operator(text: str) -> bool:
    """Whether a range is an operator's: PyProf's dictionary, or autograd's marker."""
    return _sort_of(text) in ("marker", "seq")


def pruned(markers: Iterable[str]) -> tuple[str, ...]:
    """Autograd's markers by number and name, without those of a neighbour's number and a similar name."""
    ordered = sorted(set(markers), key=_sequence_order)
    kept = ordered[:1]
    for before, marker in itertools.pairwise(ordered):
        name, number = _split(marker)
        name_before, number_before = _split(before)
        if number != number_before or not (name in name_before or name_before in name):
            kept.append(marker)
    return tuple(kept)


def sequence_numbers(markers: Iterable[str]) -> tuple[int, ...]:
    """The autograd sequence numbers that markers name, ascending, each once."""
    found = (_SEQUENCE.search(marker) for marker in markers)
    return tuple(sorted({int(match[1]) for match in found if match}))


@dataclass(slots=True)
class Placing:
    """Places kernels one after the other, in the recording's order."""

    _sequence: int = -1
    _sub_sequence: int = -1
    _operators: tuple[str, ...] = field(default=(NO_MODULE,))

    def place(self, kernel: Explained) -> Placed:
        """The kernel's own sequence number, the others of its markers, and how many went before it."""
        ids = kernel.sequence_ids
        if not ids:
            return Placed(sequence_ids=(), alternative_sequence_ids=(), sub_sequence=0)
        current = ids[0]
        if kernel.direction == FORWARD:
            current = next((number for number in ids if number > self._sequence), self._sequence)
        goes_on = kernel.operators == self._operators and (current == self._sequence or _is_recurrent(kernel))
        self._sub_sequence = self._sub_sequence + 1 if goes_on else 0
        self._sequence, self._operators = current, kernel.operators
        own, others = _parted(ids, current)
        return Placed(sequence_ids=own, alternative_sequence_ids=others, sub_sequence=self._sub_sequence)


def literal(text: str) -> Any:
    """The Python literal in a text; None if it is not one, or exceeds the bounds."""
    if len(text) > LITERAL_CHARS_MAX or _depth(text) > LITERAL_DEPTH_MAX:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def short_name(name: str) -> str:
    """A kernel's name without return type, torch's namespaces, template arguments and parameters."""
    short = name.split("<")[0]
    for part in ("void ", "at::", "cuda::", "native::", "(anonymous namespace)::"):
        short = short.replace(part, "")
    return short.split("(")[0]


def _sort_of(text: str) -> str:
    if all(word in text for word in ("mod", "op", "args", "type")):
        return "marker"
    for word, sort in (("layer:", "layer"), ("traceMarker", "trace"), ("strRepr", "repr")):
        if word in text:
            return sort
    return "seq" if _SEQUENCE.search(text) else "other"


def _call_sites(traces: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """The user's own frames of the last stack, which holds the others; and whether it could not be read."""
    if not traces:
        return (), 0
    content = literal(traces[-1])
    frames = content.get("traceMarker") if isinstance(content, dict) else None
    if not isinstance(frames, list):
        return (), 1
    own = (str(frame) for frame in frames if not any(part in str(frame) for part in _LIBRARY_FRAMES))
    return tuple(own), 0


def _named_operators(markers: Sequence[str]) -> tuple[list[tuple[str, str]], int]:
    """(operator, module) of each dictionary, and how many could not be read."""
    named = [name for marker in markers if (name := _named_operator(marker)) is not None]
    return named, len(markers) - len(named)


@functools.lru_cache(maxsize=LITERALS_KEPT)
def _named_operator(marker: str) -> tuple[str, str] | None:
    content = literal(marker)
    if not isinstance(content, dict) or "op" not in content or "mod" not in content:
        return None
    return str(content["op"]), str(content["mod"])


def _autograds_operators(sequence_markers: Sequence[str], others: Sequence[str]) -> list[tuple[str, str]]:
    """(operator, na) by autograd's markers: the backward nodes, else all; failing them another range."""
    nodes = [_forward_name(_name(m)) for m in sequence_markers if _BACKWARD_NODE.search(m)]
    names = nodes or [_name(marker) for marker in sequence_markers] or [text for text in others if text][:1]
    return [(name, NO_MODULE) for name in names]


def _forward_name(node: str) -> str:
    """``MulBackward`` or ``mul_backward`` without the mark of a node of backward."""
    for part in _NOT_THE_NAME:
        node = node.replace(part, "")
    return node.partition("Backward")[0]


def _name(marker: str) -> str:
    return marker.split(",")[0]


def _split(marker: str) -> tuple[str, str]:
    match = _SEQUENCE.search(marker)
    return _name(marker), match[1] if match else ""


def _sequence_order(marker: str) -> str:
    """As PyProf sorts: by the number's digits as text, then by name."""
    parts = marker.split(" = ")
    return parts[1] + parts[0]


def _is_recurrent(kernel: Explained) -> bool:
    """A cell that runs without cuDNN: one call, many numbers."""
    return kernel.operators[0] == "forward" and kernel.operator_modules[0] in _RECURRENT_CELLS


def _parted(ids: Sequence[int], current: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The kernel's own numbers and the others. PyProf removes while it walks: of two others in a row the
    second stays among its own."""
    own, others, place = list(ids), [], 0
    while place < len(own):
        if own[place] != current:
            others.append(own.pop(place))
        place += 1
    return tuple(own), tuple(others)


def _depth(text: str) -> int:
    """Upper bound of the brackets within one another; those in strings count too."""
    depth = highest = 0
    for match in re.finditer(r"[(\[{}\])]", text):
        depth += 1 if match[0] in "([{" else -1
        highest = max(highest, depth)
    return highest
