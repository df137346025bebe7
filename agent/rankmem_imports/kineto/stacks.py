"""Python stacks of a Kineto trace, and the modules that run: of single calls, never of all
frames.

Stage: readers; the process of ``rankmem import``. In: the trace's python_function events, or the texts
``Call stack`` of the older form; out: stack ids of the replay, and paths of modules. Newer traces give
Python's frames a thread of their own (0): where one such track is left over, it is the process's main thread.

**Modules.** A trace has no names of attributes: a module's call is a frame ``nn.Module: Linear_12``, and
its path is what it was called within, outermost first: ``GPT_0.Block_3.Linear_12``. A module that two
others call has two paths.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import Final

import numpy as np

from rankmem_imports.kineto.scan import UNKNOWN, Trace
from rankmem_imports.replay import FRAMES_MAX, MemoryStrings
from rankmem_ship.pairing.state import Array

FRAMES_AT_A_TIME: Final = 1 << 18
"""Whose parents are looked up together."""

_FRAME: Final = re.compile(r"(?P<file>.*)\((?P<line>\d{1,9})\): (?P<function>.*)", re.DOTALL)
_MODULE: Final = re.compile(r"nn\.Module: (?P<module>.+_\d+)", re.DOTALL)
"""torch numbers the modules of a class as it first meets them: ``nn.Module: Linear_12``."""
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_NO_FILE: Final = "??"
"""As torch itself writes where a frame has no file."""


class Stacks:
    """Looks up stacks in one trace; the trace's columns of Python frames are freed for it."""

    def __init__(self, trace: Trace, strings: MemoryStrings) -> None:
        self._names = trace.names.all()
        self._strings = strings
        self._of_text: dict[int, int] = {}
        self._of_frame: dict[int, int] = {}
        self._modules_of_frame: dict[int, tuple[str, ...]] = {}
        python = trace.python
        # A trace of 2 GB with stacks has 7 million frames: what is needed for a moment goes at once.
        order = np.lexsort((-python["end"], python["start"], python["thread"])).astype(np.int32)
        self._parent = _parents(python["id"], python["parent"], order)
        self._start, self._end = python["start"][order], python["end"][order]
        self._name = python["name"].astype(np.int32)[order]
        self._of_thread = _runs(_real_threads(trace)[order])
        python.clear()

    def at(self, time_ns: int, thread: int) -> int:
        """The stack of a thread at an instant; 0 where the trace has none."""
        place = self._innermost(time_ns, thread)
        return self._stack(place) if place != UNKNOWN else 0

    def modules_at(self, time_ns: int, thread: int) -> tuple[str, ...]:
        """The modules that a thread is in at an instant, the outermost first, as the trace numbers them."""
        place = self._innermost(time_ns, thread)
        if place == UNKNOWN:
            return ()
        known = self._modules_of_frame.get(place)
        if known is None:
            around = [_MODULE.fullmatch(self._names[int(self._name[at])]) for at in self._upwards(place)]
            found = [match["module"].replace(".", "_") for match in reversed(around) if match]
            known = self._modules_of_frame[place] = tuple(module for module, _ in groupby(found))
        return known

    def modules_of(self, times: Array, threads: Array) -> list[tuple[str, ...]]:
        """:meth:`modules_at` of each."""
        return [self.modules_at(*pair) for pair in zip(times.tolist(), threads.tolist(), strict=True)]

    def of_text(self, name: int) -> int:
        """The stack in a text of the older form: frames divided by semicolons, nearest first."""
        known = self._of_text.get(name)
        if known is None:
            frames = [self._frame(text) for text in self._names[name].split(";")[:FRAMES_MAX] if text]
            known = self._of_text[name] = self._strings.make_stack(frames)
        return known

    def _innermost(self, time_ns: int, thread: int) -> int:
        """Where the innermost frame of a thread at an instant stands; UNKNOWN for none."""
        first, after = self._of_thread.get(thread, (0, 0))
        place = first + int(np.searchsorted(self._start[first:after], time_ns, side="right")) - 1
        if place < first:
            return UNKNOWN
        # Frames nest: the one around is the last begun, or an ancestor of it.
        return next((at for at in self._upwards(place) if self._end[at] >= time_ns), UNKNOWN)

    def _upwards(self, place: int) -> Iterator[int]:
        """A frame and those around it, FRAMES_MAX at most."""
        for _ in range(FRAMES_MAX):
            if place == UNKNOWN:
                return
            yield place
            place = int(self._parent[place])

    def _stack(self, place: int) -> int:
        known = self._of_frame.get(place)
        if known is None:
            frames = [self._frame(self._names[int(self._name[at])]) for at in self._upwards(place)]
            known = self._of_frame[place] = self._strings.make_stack(frames)
        return known

    def _frame(self, text: str) -> int:
        """``file(line): function``; a built-in and a module's call have no file. An object's address is
        dropped: it would make a stack of its own for each object."""
        match = _FRAME.fullmatch(text)
        if match is None:
            return self._strings.frame(_NO_FILE, _ADDRESS.sub("", text), 0)
        return self._strings.frame(match["file"], match["function"], int(match["line"]))


def class_of(module: str) -> str:
    """The class of a module as the trace numbers it: ``Linear`` of ``Linear_12``."""
    return module.rpartition("_")[0]


def _real_threads(trace: Trace) -> Array:
    """The thread of each Python frame, as operators name it."""
    thread = trace.python["thread"]
    tracks = set(np.unique(thread).tolist())
    others = set(np.unique(trace.operators["thread"]).tolist())
    others |= set(np.unique(trace.memory["thread"]).tolist())
    names = trace.threads.all()
    main = [number for number in others if names[number][0] == names[number][1]]
    lost = tracks - others
    if len(lost) != 1 or len(main) != 1 or main[0] in tracks:
        return thread
    return np.where(thread == lost.pop(), main[0], thread)


def _runs(values: Array) -> dict[int, tuple[int, int]]:
    """Where each value stands, from and up to, when equal ones stand together."""
    firsts = np.flatnonzero(np.diff(values, prepend=values[:1] - 1)).tolist()
    return {int(values[first]): (first, after) for first, after in pairwise([*firsts, len(values)])}


def _parents(ids: Array, parents: Array, order: Array) -> Array:
    """Where in this order each frame's parent stands; UNKNOWN where nowhere. Some at a time."""
    found = np.full(len(order), UNKNOWN, np.int32)
    sorted_ids = ids[order]
    by_id = np.argsort(sorted_ids, kind="stable").astype(np.int32)
    sorted_ids = sorted_ids[by_id]
    for first in range(0, len(order), FRAMES_AT_A_TIME):
        wanted = parents[order[first : first + FRAMES_AT_A_TIME]]
        near = np.minimum(np.searchsorted(sorted_ids, wanted), len(order) - 1)
        found[first : first + len(wanted)] = np.where(sorted_ids[near] == wanted, by_id[near], UNKNOWN)
    return found
