"""A Kineto trace as columns, without the events that a rank's memory does not need; one pass over the file.

Stage: readers; the process of ``rankmem import``. In: the events of a Chrome trace; out: :class:`Trace`,
columns of numbers and their few texts. Held: 40 bytes an operator or range, 88 a memory event,
nothing of the rest (kernels, flows, arguments), so that a trace of 2 GB takes some 300 MB. Source:
libkineto's output_json.cpp and torch's kineto_shim.cpp, 1.8 (2021) to 2.13. The older form has
``Operator`` for cpu_op, has texts for thread ids, no Addr and no totals.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

import numpy as np

from rankmem_imports.bounds import checked_bytes, checked_ns
from rankmem_imports.files.json_events import JsonEvents
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.plain_errors import plain
from rankmem_ship.pairing.state import Array

MEMORY: Final = "[memory]"
OPERATORS: Final = ("cpu_op", "Operator")
ANNOTATIONS: Final = ("user_annotation",)
PYTHON: Final = ("python_function", "Python")
FLOW: Final = "fwdbwd"
STEP: Final = "ProfilerStep#"
RANGES_OF_TORCH: Final = (STEP, "Optimizer.step#", "Optimizer.zero_grad#")
"""How the ranges of a step begin: user_annotation today, among the operators in the older form (2021)."""

UNKNOWN: Final = -1
NAMES_MAX: Final = 10_000_000
"""Different names of one trace: a trace of 2 GB that makes a new one for each event has fewer."""


class Numbers:
    """Columns of whole numbers that grow, row by row."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self.clear()

    def clear(self) -> None:
        """No rows."""
        self._rows = array("q")
        self.add = self._rows.extend
        """Takes a row, a number for each column. One call into C: a trace of 2 GB has 5 million."""

    def __len__(self) -> int:
        return len(self._rows) // len(self._names)

    def __getitem__(self, name: str) -> Array:
        if not len(self._rows):
            return np.zeros(0, np.int64)
        rows = np.frombuffer(self._rows, np.int64).reshape(-1, len(self._names))
        return rows[:, self._names.index(name)]


class Names:
    """Things numbered in the order of their first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, name: Hashable) -> int:
        """The number of a name."""
        known = self._numbers.get(name)
        if known is None:
            if len(self._numbers) >= NAMES_MAX:
                raise ValueError(f"more than {NAMES_MAX} different names")
            known = self._numbers[name] = len(self._numbers)
        return known

    def all(self) -> list[Any]:
        """By number."""
        return list(self._numbers)


@dataclass(slots=True)
class Trace:
    """What was found. Times are nanoseconds as in the file: add ``base_ns``."""

    names: Names = field(default_factory=Names)
    threads: Names = field(default_factory=Names)
    """(process, thread), as texts."""
    operators: Numbers = field(
        default_factory=lambda: Numbers("start", "end", "thread", "name", "call_stack")
    )
    annotations: Numbers = field(default_factory=lambda: Numbers("start", "end", "thread", "name"))
    python: Numbers = field(default_factory=lambda: Numbers("start", "end", "thread", "name", "id", "parent"))
    flows: Numbers = field(default_factory=lambda: Numbers("time", "thread", "id", "is_end"))
    """Autograd's, from a forward operator to its backward one."""
    memory: Numbers = field(
        default_factory=lambda: Numbers(
            "time", "thread", "device_type", "device_index", "bytes", "address", "allocated", "reserved"
        )
    )
    """In the file's order; address, allocated and reserved UNKNOWN where absent."""
    fields: dict[str, Any] = field(default_factory=dict)
    num_events: int = 0

    def forget(self) -> None:
        """Frees the columns."""
        for columns in (self.operators, self.annotations, self.python, self.flows, self.memory):
            columns.clear()

    def check_times(self) -> None:
        """Raises ValueError for a time that no clock shows; once for all, as there are millions."""
        for columns, names in (
            (self.operators, ("start", "end")),
            (self.annotations, ("start", "end")),
            (self.python, ("start", "end")),
            (self.flows, ("time",)),
            (self.memory, ("time",)),
        ):
            for name in names if len(columns) else ():
                checked_ns(int(columns[name].max()) + self.base_ns)
                if int(columns[name].min()) + self.base_ns < 0:
                    raise ValueError(f"a time ({name}) lies before 1970")

    @property
    def base_ns(self) -> int:
        """The offset of its times from UTC; 0 in the form with UTC times."""
        return base_time_ns(self.fields.get("baseTimeNanoseconds"))


def scan(path: Path) -> Trace:
    """The columns of a trace.

    Raises:
        RankmemError: INVALID where the file breaks off or has impossible values.
    """
    trace = Trace()
    events = JsonEvents(path)
    sinks = _sinks(trace)
    for event in events.events():
        trace.num_events += 1
        sink = sinks.get(_sort_of(event))
        if sink is None:
            continue
        try:
            sink(event)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, InvalidOperation) as error:
            raise RankmemError(
                Code.INVALID,
                f"{path}: event {trace.num_events} ({str(event.get('name'))[:80]!r}) cannot be read: "
                f"{plain(error)}",
                "export the trace again from the profiler",
            ) from error
    trace.fields = events.fields
    try:
        trace.check_times()
    except ValueError as error:
        raise RankmemError(Code.INVALID, f"{path}: {plain(error)}", "export the trace again") from error
    return trace


def base_time_ns(value: object) -> int:
    """The value of ``baseTimeNanoseconds``; 0 without one.

    Raises:
        ValueError: it is not a whole number.
    """
    try:
        base = Decimal(0 if value is None else value)  # type: ignore[arg-type]
        if base == base.to_integral_value():
            return checked_ns(int(base))
    except (InvalidOperation, OverflowError, TypeError, ValueError):
        pass
    raise ValueError(f"baseTimeNanoseconds is {str(value)[:40]}")


def time_ns(microseconds: int | str) -> int:
    """A time of the file, exact to the nanosecond; three digits behind the point are the rule."""
    if isinstance(microseconds, int):
        return microseconds * 1000
    if not isinstance(microseconds, str):
        raise ValueError(f"a time that is {str(microseconds)[:40]}")
    if microseconds[-4:-3] == ".":
        try:
            return int(microseconds[:-4] + microseconds[-3:])
        except ValueError:
            pass
    return int(Decimal(microseconds) * 1000)


def _sort_of(event: dict[str, Any]) -> str | None:
    """The kind of an event; MEMORY for those of memory."""
    if event.get("name") == MEMORY and event.get("ph") == "i":
        return MEMORY
    category = event.get("cat")
    if event.get("ph") in ("X", "s", "f"):
        if category in OPERATORS and str(event.get("name")).startswith(RANGES_OF_TORCH):
            return ANNOTATIONS[0]
        return category if isinstance(category, str) else None
    return None


def _sinks(trace: Trace) -> dict[str | None, Callable[[dict[str, Any]], None]]:
    """The function that takes each kind; looked up once for each event."""
    name_of, thread_of = trace.names.number, trace.threads.number
    add_operator, add_annotation = trace.operators.add, trace.annotations.add

    thread_of_raw: dict[Any, int] = {}

    def thread(event: dict[str, Any]) -> int:
        key = (event["pid"], event["tid"])
        known = thread_of_raw.get(key)
        if known is None:
            known = thread_of_raw[key] = thread_of((str(key[0]), str(key[1])))
        return known

    def operator(event: dict[str, Any]) -> None:
        start = time_ns(event["ts"])
        stack = event.get("args", _NOTHING).get("Call stack")
        add_operator(
            (
                start,
                start + time_ns(event.get("dur", 0)),
                thread(event),
                name_of(event["name"]),
                name_of(_text(stack)) if stack else UNKNOWN,
            )
        )

    def annotation(event: dict[str, Any]) -> None:
        start = time_ns(event["ts"])
        end = start + time_ns(event.get("dur", 0))
        add_annotation((start, end, thread(event), name_of(str(event["name"]))))

    def python(event: dict[str, Any]) -> None:
        start, args = time_ns(event["ts"]), event["args"]
        trace.python.add(
            (
                start,
                start + time_ns(event.get("dur", 0)),
                thread(event),
                name_of(str(event["name"])),
                int(args["Python id"]),
                _known(args.get("Python parent id")),
            )
        )

    def flow(event: dict[str, Any]) -> None:
        trace.flows.add((time_ns(event["ts"]), thread(event), int(event["id"]), event["ph"] == "f"))

    def memory(event: dict[str, Any]) -> None:
        args = event["args"]
        trace.memory.add(
            (
                time_ns(event["ts"]),
                thread(event),
                _within(args["Device Type"], 0, 255),
                _within(args["Device Id"], UNKNOWN, 255),
                checked_bytes(args["Bytes"]),
                _address(args.get("Addr")),
                checked_bytes(_known(args.get("Total Allocated"))),
                checked_bytes(_known(args.get("Total Reserved"))),
            )
        )

    found: dict[str | None, Callable[[dict[str, Any]], None]] = {MEMORY: memory, FLOW: flow}
    found |= dict.fromkeys(OPERATORS, operator)
    found |= dict.fromkeys(ANNOTATIONS, annotation)
    found |= dict.fromkeys(PYTHON, python)
    return found


_NOTHING: Final[dict[str, Any]] = {}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _known(value: object) -> int:
    return UNKNOWN if value is None else int(value)  # type: ignore[call-overload]


def _address(value: object) -> int:
    """As a signed number: those of Intel's GPUs begin above 2**63."""
    address = _known(value)
    return address - 2**64 if 2**63 <= address < 2**64 else address


def _within(value: object, least: int, most: int) -> int:
    number = int(value)  # type: ignore[call-overload]
    if not least <= number <= most:
        raise ValueError(f"a device's type or index is {number}, outside of {least} to {most}")
    return int(number)
