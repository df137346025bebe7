"""Steps of two recordings whose code has other names: what is the same, and what nobody can tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rankmem_aggregator.insights.fit_sizes import Recorded
from rankmem_aggregator.insights.laws import of_two
from rankmem_aggregator.insights.reading import CannotTell
from rankmem_aggregator.insights.same_code import SameCode, with_first_names
from rankmem_aggregator.insights.windows import NEVER, Place, StepSize, Window

PLACE = Place(
    session_id="0", attempt=0, rank=0, device="cpu", device_type="cpu", allocator=None, settings=None,
    total_bytes=None,
)  # fmt: skip
SIZE = StepSize(step=3, from_seq=0, to_seq=99, input_bytes=1, peak_bytes=None)
Row = tuple[str, str | None, str | None, str | None]
"""Operator, line, function, module."""
NET: list[Row] = [
    ("aten::randn", "train.py:40", "main", None),
    ("aten::linear", "net.py:12", "Block.forward", "layers.0"),
    ("aten::relu", "net.py:13", "Block.forward", "layers.0"),
    ("aten::linear", "net.py:12", "Block.forward", "layers.1"),
    ("aten::relu", "net.py:13", "Block.forward", "layers.1"),
    ("aten::mul", "net.py:30", "Net.forward", "Net"),
    ("aten::dot", "[/venv/lib/torch/nn.py:7]", "dot", "Net"),
]
CLASSES = {"Net": "Net", "layers.0": "Block", "layers.1": "Block"}


def step(rows: list[Row], times: int, source: int) -> Recorded:
    """A step whose blocks are made one after another, each of so many bytes; the last one is of backward."""
    operator, line, function, module = (list(each) for each in zip(*rows, strict=True))
    back: list[Any] = [None] * len(rows)
    window = Window(
        place=PLACE, size=SIZE, begin=0, end=99, born=np.arange(1, len(rows) + 2),
        died=np.full(len(rows) + 1, NEVER), bytes=np.full(len(rows) + 1, times),
        category=["activation"] * (len(rows) + 1),
        operator=[*operator, "aten::mm"], module=[*module, module[-2]],
        phase=[*["forward"] * len(rows), "backward"], line=[*line, line[0]], forward_line=[*back, line[-2]],
        function=[*function, function[0]], forward_function=[*back, function[-2]],
        recomputed=[False] * (len(rows) + 1), stream=[*back, None], pool=[*back, None],
    )  # fmt: skip
    return Recorded(window=window, size=times, number=times, input_bytes=times, source=source)


def named(other: list[Row], classes: dict[str, str] = CLASSES, rows: list[Row] = NET) -> SameCode:
    """Two recordings at sizes 2 and 4, the second of which has these names."""

    def asked(known: dict[str, str]) -> Any:
        return lambda name, **_: pa.Table.from_pylist(
            [] if name == "weights" else [{"module": path, "class": each} for path, each in known.items()],
            schema=pa.schema([("module", pa.string()), ("class", pa.string())]),
        )

    return with_first_names([step(rows, 2, 0), step(other, 4, 1)], [asked(CLASSES), asked(classes)])


def moved_to(text: str, now: str) -> list[Row]:
    return [
        (operator, *(None if each is None else each.replace(text, now) for each in (line, function, module)))
        for operator, line, function, module in NET
    ]  # type: ignore[misc]


def matched(same: SameCode) -> float:
    one, other = same.recorded
    return of_two(other.window, other.size, one.window, one.size).matched


def test_steps_of_the_same_names_stay_as_they_are() -> None:
    same = named(NET)
    assert (list(same.moved), list(same.unclear), same.is_edited) == ([], [], False)
    assert matched(same) == 1


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ("net.py", "src/models/net.py", ["src/models/net.py -> net.py"]),
        ("net.py", "model.py", ["model.py -> net.py"]),
        ("/venv/", "/home/other/venv/", ["/home/other/venv/lib/torch/nn.py -> /venv/lib/torch/nn.py"]),
    ],
)
def test_files_that_moved_have_the_names_of_the_first_recording(
    before: str, now: str, told: list[str]
) -> None:
    same = named(moved_to(before, now))
    assert (list(same.moved), same.is_edited, matched(same)) == (told, False, 1)
    assert same.recorded[1].window.line == same.recorded[0].window.line
    assert same.recorded[1].window.forward_line == same.recorded[0].window.forward_line


def test_a_checkout_elsewhere_moves_all_files() -> None:
    rows = [(one, f"../other/{line}" if line and line[0] != "[" else line, *more) for one, line, *more in NET]
    same = named(rows)  # type: ignore[arg-type]
    assert sorted(same.moved) == ["../other/net.py -> net.py", "../other/train.py -> train.py"]
    assert matched(same) == 1


def test_a_renamed_root_has_the_name_of_the_first_recording() -> None:
    rows = [tuple(text and text.replace("Net", "Tower") for text in row) for row in NET]
    same = named(rows, {"Tower": "Tower", "layers.0": "Block", "layers.1": "Block"})  # type: ignore[arg-type]
    assert (list(same.moved), matched(same)) == (["class Tower -> Net"], 1)


def test_other_line_numbers_leave_functions_and_the_first_recording_loses_its_numbers_too() -> None:
    same = named(moved_to(":1", ":21"))
    assert (list(same.moved), same.is_edited, matched(same)) == ([], True, 1)
    both = named(moved_to("net.py:", "src/net.py:1"))
    assert (list(both.moved), both.is_edited, matched(both)) == (["src/net.py -> net.py"], True, 1)


def test_files_that_could_be_each_other_are_left_and_the_reason_names_them() -> None:
    """Two files with the same function, both of other names: which is which nobody can tell."""

    def two(first: str, second: str) -> list[Row]:
        return [("aten::mul", f"{file}:5", "forward", None) for file in (first, second)] * 4

    same = named(two("c.py", "d.py"), rows=two("a.py", "b.py"))
    assert list(same.moved) == []
    assert list(same.unclear) == [
        "c.py, d.py -> a.py, b.py (several forward; it is not known which is which)"
    ]
    one, other = same.recorded
    model = of_two(other.window, other.size, one.window, one.size)
    with pytest.raises(CannotTell, match=r"same program.*c\.py, d\.py -> a\.py, b\.py"):
        model.refuse("batch", same.unclear)


def test_other_code_is_left_as_it_is() -> None:
    rows = [(f"{operator}_other", line and f"src/{line}", *more) for operator, line, *more in NET]
    same = named(rows)  # type: ignore[arg-type]
    assert (list(same.moved), same.is_edited) == ([], False)
    assert matched(same) < 0.5


def test_several_sizes_of_the_other_recording_are_named_alike() -> None:
    rows = moved_to("net.py", "model.py")
    sizes = [step(NET, 2, 0), step(rows, 4, 1), step(rows, 8, 1)]
    empty = pa.schema([("module", pa.string()), ("class", pa.string())]).empty_table()
    same = with_first_names(sizes, [lambda *_, **__: empty] * 2)
    assert len({tuple(each.window.names()) for each in same.recorded}) == 1
    assert [each.size for each in same.recorded] == [2, 4, 8]
    assert same.recorded[1] == replace(sizes[1], window=same.recorded[1].window)


def test_what_is_known_to_be_another_name_is_not_among_what_is_unclear() -> None:
    """A renamed root, in which two files of another name have the same function."""

    def two(first: str, second: str, root: str) -> list[Row]:
        rows: list[Row] = [("aten::mul", f"{file}:5", "forward", root) for file in (first, second)] * 4
        return [*rows, ("aten::add", "net.py:9", f"{root}.forward", root)]

    same = named(two("c.py", "d.py", "Tower"), {"Tower": "Tower"}, two("a.py", "b.py", "Net"))
    assert same.unclear
    assert not [each for each in same.unclear if each.startswith("class ")]
