"""What the readers of profiles say of a value that cannot be: in words, not in Python's own."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import made_profiles
from made_profiles import memory, op, written
from rankmem_imports.formats import FORMATS, Format
from rankmem_imports.recording import Identity
from rankmem_protos.errors import RankmemError
from rankmem_protos.plain_errors import plain
from repetitions import long_but

pytestmark = pytest.mark.slow

INTERNAL = re.compile(
    r"\w+Error\b|Error parsing|NoneType|int\(\)|\bint too\b|base 10|object|subscript|attribute|argument|"
    r"operand|codec|C long|C int|iterable|literal|decimal|unpack|indices|instances|struct|np\.|numpy|"
    r"'(str|int|list|dict)'"
)
"""How Python words what a program did wrong."""
ODD: tuple[Any, ...] = (None, "soon", "12a", [], {}, [1], 1.5, True, 2**70, -(2**70), "\ud800")


def complaint(reader: Format, path: Path) -> str:
    """What the reader says of a file; empty where it reads it."""
    try:
        for recording in reader.open([path]):
            for _ in recording.parts(Identity("S", 0, 0)):
                pass
            recording.closing()
    except RankmemError as error:
        return f"{error.message} {error.hint}"
    return ""


def trace() -> list[dict[str, Any]]:
    """An event of each kind that is read."""
    python = {"Python id": 1, "Python parent id": None}
    flow = {"cat": "fwdbwd", "name": "fwdbwd", "pid": 1, "tid": 1, "id": 3}
    return [
        op("aten::mm", 0, 10, **{"Call stack": "train.py(3): main"}),
        op("ProfilerStep#1", 0, 90, category="user_annotation"),
        op("train.py(12): main", 0, 100, category="python_function", **python),
        flow | {"ph": "s", "ts": 1},
        flow | {"ph": "f", "ts": 2},
        memory(5, 512, 512, 1),
    ]


def spoiled() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The trace with one field left out or of another kind."""
    for place, event in enumerate(trace()):
        for key in event:
            events = trace()
            del events[place][key]
            yield f"{place} {key}", events
            for odd in ODD:
                events = trace()
                events[place][key] = odd
                yield f"{place} {key} {odd!r}", events
        for key in event.get("args", ()):
            events = trace()
            del events[place]["args"][key]
            yield f"{place} args {key}", events
            for odd in ODD:
                events = trace()
                events[place]["args"][key] = odd
                yield f"{place} args {key} {odd!r}", events


def test_a_memory_event_without_args_is_told_in_words(tmp_path: Path) -> None:
    event = memory(5, 512, 512, 1)
    del event["args"]
    said = complaint(FORMATS["kineto"], written(tmp_path, [memory(4, 512, 512, 1), event]))
    assert "trace.json: event 2 ('[memory]') cannot be read: it has no 'args'" in said
    assert not INTERNAL.search(said)


def test_no_spoiled_event_of_a_trace_is_told_in_pythons_words(tmp_path: Path) -> None:
    told = {what: complaint(FORMATS["kineto"], written(tmp_path, events)) for what, events in spoiled()}
    assert {what: said for what, said in told.items() if INTERNAL.search(said)} == {}
    assert "'ts'" in told["5 ts"]
    assert "'12a' is not a whole number" in told["5 args Bytes '12a'"]


@pytest.mark.parametrize(
    "value",
    long_but(
        ["NULL", "'text'", "x'00ff'", "9e300", str(2**63 - 1), str(-(2**63))], "NULL", "x'00ff'", "9e300"
    ),
)
def test_no_spoiled_column_of_an_nsys_export_is_told_in_pythons_words(tmp_path: Path, value: str) -> None:
    told = spoiled_columns(FORMATS["nsys"], made_profiles.export(tmp_path), value)
    assert {what: said for what, said in told.items() if INTERNAL.search(said)} == {}


@pytest.mark.parametrize("value", ["NULL", "'text'", "x'00ff'", "9e300", str(2**63 - 1), str(-(2**63))])
def test_no_spoiled_column_of_an_nvprof_profile_is_told_in_pythons_words(tmp_path: Path, value: str) -> None:
    told = spoiled_columns(FORMATS["nvprof"], made_profiles.nvprof_profile(tmp_path), value)
    assert {what: said for what, said in told.items() if INTERNAL.search(said)} == {}


def spoiled_columns(reader: Format, path: Path, value: str) -> dict[str, str]:
    """What is said with each column of each table set to the value, by table and column."""
    whole = path.read_bytes()
    with sqlite3.connect(path) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = [
            (table, name)
            for table in tables
            for (name,) in database.execute("SELECT name FROM pragma_table_info(?)", [table])
        ]
    database.close()
    told = {}
    for table, column in columns:
        path.write_bytes(whole)
        try:
            with sqlite3.connect(path) as database:
                database.execute(f'UPDATE "{table}" SET "{column}" = {value}')
        except sqlite3.IntegrityError:  # the schema forbids it: no such file is written
            continue
        finally:
            database.close()
        told[f"{table}.{column} = {value}"] = complaint(reader, path)
    return told


def test_no_damaged_step_of_tensorflow_is_told_in_pythons_words(tmp_path: Path) -> None:
    whole = made_profiles.saved(tmp_path, made_profiles.step(3, nodes=4), "pb").read_bytes()
    told = set()
    for place in range(0, len(whole), 3):
        for value in (0x00, 0x7F, 0xFF):
            path = tmp_path / "damaged.pb"
            path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            told.add(complaint(FORMATS["tensorflow"], path))
    assert {said for said in told if INTERNAL.search(said)} == set()
    assert any("damaged" in said or "breaks off" in said for said in told)


def test_what_python_raises_is_put_into_words() -> None:
    for wrong in (
        lambda: int("12a"),
        lambda: int(None),  # type: ignore[call-overload]
        lambda: {}["args"],
        lambda: "x".nothing,  # type: ignore[attr-defined]
        lambda: list("a")["a"],  # type: ignore[call-overload]
        lambda: None + 1,  # type: ignore[operator]
        lambda: b"\xff".decode(),
        lambda: float("x"),
        lambda: (2**70).to_bytes(8),
    ):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            wrong()
        assert isinstance(caught.value, Exception)
        assert not INTERNAL.search(plain(caught.value)), plain(caught.value)
    assert plain(ValueError("more than 5 names")) == "more than 5 names"
