"""Writes Chrome's trace format row by row.

Stage: export. In: slices, counters and arrows with times in ns; out: JSON text, one row per line. Times
become µs from a base, with three decimals: exact, where a double since 1970 would lose the nanoseconds.

Source: the Trace Event Format (Google), as far as Perfetto's JSON importer reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import IO, Any, NamedTuple

NAMES_KEPT_MAX = 65_536
"""Names kept as JSON text: a job has thousands of different ones; some MiB."""

END_NS = 10
"""An arrow starts at least so long before its slice's end: Perfetto reads microseconds as doubles."""


class Span(NamedTuple):
    """The row and times of a slice, for arrows that bind to it."""

    tid: int
    started_ns: int
    ended_ns: int

    def within(self, time_ns: int) -> int:
        """The time moved into the slice: before its end, as an arrow at the end binds to nothing, by more
        than the rounding of doubles."""
        last_ns = self.ended_ns - min(END_NS, (self.ended_ns - self.started_ns + 1) // 2)
        return min(max(time_ns, self.started_ns), last_ns)


class TraceFile:
    """An open trace.

    Args:
        file: takes text.
        base_ns: the zero of its times; none is earlier.
    """

    def __init__(self, file: IO[str], base_ns: int) -> None:
        self._write = file.write
        self.base_ns = base_ns
        self._separator = ""
        self._write('{"traceEvents":[')
        self.counts: dict[str, int] = {}
        """Rows of each kind."""

    def end(self, facts: Mapping[str, Any]) -> None:
        """Ends the file after the last row; ``facts`` stand next to the rows."""
        rest = json.dumps(facts)
        self._write(f"\n],{rest[1:]}\n")

    def process(self, pid: int, name: str, labels: str, order: int) -> None:
        """Names a process and gives its position."""
        for kind, args in (
            ("process_name", {"name": name}),
            ("process_labels", {"labels": labels}),
            ("process_sort_index", {"sort_index": order}),
        ):
            self._row(f'"ph":"M","name":"{kind}","pid":{pid},"tid":0,"args":{json.dumps(args)}')

    def thread(self, pid: int, tid: int, name: str, order: int) -> None:
        """Names a row of slices and gives its position."""
        for kind, args in (("thread_name", {"name": name}), ("thread_sort_index", {"sort_index": order})):
            self._row(f'"ph":"M","name":"{kind}","pid":{pid},"tid":{tid},"args":{json.dumps(args)}')

    def slice(self, pid: int, place: Span, cat: str, name: str, args: Mapping[str, Any]) -> None:
        """Writes a slice on a row."""
        duration = _us(max(place.ended_ns - place.started_ns, 1))
        self._count(f"{cat} slices")
        self._row(
            f'"ph":"X","name":{_text(name)},"cat":"{cat}","pid":{pid},"tid":{place.tid},'
            f'"ts":{self._ts(place.started_ns)},"dur":{duration},"args":{_args(args)}'
        )

    def counter(self, pid: int, name: str, time_ns: int, value_bytes: int) -> None:
        """Writes a counter's value from a time on."""
        self._count("counter values")
        self._row(
            f'"ph":"C","name":{_text(name)},"cat":"memory","pid":{pid},"ts":{self._ts(time_ns)},'
            f'"args":{{"bytes":{value_bytes}}}'
        )

    def life(
        self, pid: int, key: str, name: str, from_ns: int, until_ns: int, args: Mapping[str, Any]
    ) -> None:
        """Writes the life of a block, an async slice."""
        self._count("blocks")
        head = f'"name":{_text(name)},"cat":"block","id":"{key}","pid":{pid},"tid":0'
        self._row(f'"ph":"b",{head},"ts":{self._ts(from_ns)},"args":{_args(args)}')
        self._row(f'"ph":"e",{head},"ts":{self._ts(until_ns)}')

    def arrow(
        self, pid: int, key: str, name: str, begin: Span, begin_ns: int, end: Span, end_ns: int
    ) -> None:
        """Writes an arrow from a slice to a later one."""
        from_ns, until_ns = begin.within(begin_ns), end.within(end_ns)
        if until_ns < from_ns:
            return  # viewers show no arrow back in time
        self._count(f"{name} arrows")
        head = f'"name":"{name}","cat":"{name}","id":"{key}","pid":{pid}'
        self._row(f'"ph":"s",{head},"tid":{begin.tid},"ts":{self._ts(from_ns)}')
        self._row(f'"ph":"f","bp":"e",{head},"tid":{end.tid},"ts":{self._ts(until_ns)}')

    def _ts(self, time_ns: int) -> str:
        return _us(time_ns - self.base_ns)

    def _row(self, inside: str) -> None:
        self._write(f"{self._separator}\n{{{inside}}}")
        self._separator = ","

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def _us(ns: int) -> str:
    sign = "-" if ns < 0 else ""
    whole, rest = divmod(abs(ns), 1000)
    return f"{sign}{whole}.{rest:03d}" if rest else f"{sign}{whole}"


def _args(args: Mapping[str, Any]) -> str:
    parts = (
        f'"{name}":{_text(value) if isinstance(value, str) else json.dumps(value)}'
        for name, value in args.items()
        if value is not None
    )
    return "{" + ",".join(parts) + "}"


@lru_cache(maxsize=NAMES_KEPT_MAX)
def _text(text: str) -> str:
    return json.dumps(text)
