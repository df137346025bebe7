"""The live view: it fits any terminal, asks again and again, and an answer that fails leaves the last one."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from rankmem_cli.show.session import SessionFacts
from rankmem_cli.show.top import TopView, sorted_rows
from rankmem_protos.errors import Code, RankmemError

GIB = 1 << 30
NOON_NS = 1_800_014_400_000_000_000
FACTS = SessionFacts(session_id="01AAAAAAAAAA", name="evil\x1b[31m\nname", started_ns=0)


def row(rank: int, used_gib: int, **more: object) -> dict[str, object]:
    return {
        "rank": rank, "host_name": f"node-{rank}.example", "device": "cuda:0", "used_bytes": used_gib * GIB,
        "reserved_bytes": used_gib * GIB, "app_reserved_bytes": used_gib * GIB,
        "peak_requested_bytes": used_gib * GIB, "device_total_bytes": 80 * GIB,
        "headroom_bytes": (80 - used_gib) * GIB, "headroom_share": (80 - used_gib) / 80,
        "age_ns": 500_000_000, "ended_ns": None,
    } | more  # fmt: skip


class Asked:
    """Answers in turn; an exception is raised."""

    stale = ""

    def __init__(self, *answers: list[dict[str, object]] | RankmemError) -> None:
        self._answers = list(answers)
        self.num_asked = 0
        self.missing: list[dict[str, object]] = []

    def incompleteness(self, session_id: str) -> pa.Table:
        return pa.Table.from_pylist(self.missing)

    def top(self, session_id: str) -> pa.Table:
        assert session_id == FACTS.session_id
        self.num_asked += 1
        answer = self._answers.pop(0)
        if isinstance(answer, RankmemError):
            raise answer
        return pa.Table.from_pylist(answer)


def view_of(asked: Any, *, width: int, height: int, sort: str = "used", **more: Any) -> TopView:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    return TopView(asked, FACTS, sort=sort, every_s=2.0, console=console, clock_ns=lambda: NOON_NS, **more)


def lines_of(view: TopView) -> list[str]:
    with view._console.capture() as captured:
        view._console.print(view.drawn())
    return captured.get().rstrip("\n").split("\n")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 6), (200, 60)])
def test_the_screen_is_never_wider_or_higher_than_the_terminal(width: int, height: int) -> None:
    view = view_of(Asked([row(n, 10 + n % 60) for n in range(100)]), width=width, height=height)
    view.ask()
    lines = lines_of(view)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert len(lines) == height, "a hundred ranks fill it"
    assert "more" in lines[2]


def test_the_highest_use_comes_first_with_headroom_and_sums() -> None:
    view = view_of(Asked([row(0, 10), row(1, 70), row(2, 30, ended_ns=5)]), width=120, height=20)
    view.ask()
    lines = lines_of(view)
    assert [line.split()[0] for line in lines[4:7]] == ["1", "2", "0"]
    assert "12:00:00" in lines[0]
    assert "2 of 3 ranks running, 110.00 GiB used, least headroom 10.00 GiB" in lines[1]
    assert "10.00 GiB" in lines[4]
    assert "12.5%" in lines[4]


def test_what_a_name_holds_moves_no_cursor() -> None:
    view = view_of(Asked([row(0, 1, host_name="\x1b[2Jhost\n\u202e")]), width=100, height=10)
    view.ask()
    assert "\x1b" not in "".join(lines_of(view))
    assert len(lines_of(view)) == 5


@pytest.mark.parametrize(
    ("sort", "ranks"),
    [("used", [1, 0, 2]), ("headroom", [2, 1, 0]), ("peak", [0, 1, 2]), ("rank", [0, 1, 2])],
)
def test_rows_are_sorted_as_asked(sort: str, ranks: list[int]) -> None:
    rows = pa.Table.from_pylist(
        [
            row(2, 10, headroom_share=0.1, peak_requested_bytes=1),
            row(0, 20, headroom_share=0.9, peak_requested_bytes=3),
            row(1, 30, headroom_share=0.5, peak_requested_bytes=2),
        ]
    )
    assert sorted_rows(rows, sort)["rank"].to_pylist() == ranks


def test_it_asks_at_each_turn_of_the_clock_until_it_is_ended() -> None:
    asked = Asked([row(0, 1)], [row(0, 2)], [row(0, 3)])
    turns = iter([False, False, True])
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return next(turns)

    view = view_of(asked, width=80, height=24, wait=wait)
    view.run()
    assert (asked.num_asked, waits) == (3, [2.0, 2.0, 2.0])
    assert "3.00 GiB" in lines_of(view)[4]


def test_an_aggregator_that_is_away_for_a_while_leaves_the_last_answer_with_a_word() -> None:
    away = RankmemError(Code.UNAVAILABLE, "no aggregator answers")
    view = view_of(Asked([row(0, 7)], away, [row(0, 8)]), width=200, height=24)
    view.ask()
    view.ask()
    assert lines_of(view)[2].strip() == "no aggregator answers"
    assert "7.00 GiB" in lines_of(view)[4]
    view.ask()
    assert lines_of(view)[2].strip() == ""
    assert "8.00 GiB" in lines_of(view)[4]


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.DENIED])
def test_a_first_answer_that_fails_is_an_error(code: Code) -> None:
    with pytest.raises(RankmemError):
        view_of(Asked(RankmemError(code, "no")), width=80, height=24).run()
