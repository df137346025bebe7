"""The checks for a GPU, as far as they need none: judging, rows, the limit of a run."""

from __future__ import annotations

import re
import time
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import pytest

from gpu import exactly, stages, works
from gpu.checks import Check, Place, equal, within
from gpu.cost import blocks_of, interval_of, judge_memory, judge_ratio
from gpu.rows import Row, append, counts, read, table
from gpu.runner import Budget, Results, run_all, run_here, worst
from gpu.source import judge_check, judge_fit

README = Path(stages.__file__).with_name("README.md")


@pytest.fixture
def results(tmp_path: Path) -> Results:
    folder = tmp_path / "out"
    folder.mkdir()
    return Results(folder=folder)


def test_no_check_begins_with_less_than_half_of_its_limit_left(results: Results, tmp_path: Path) -> None:
    check = Check(name="too_long", look=lambda place: [], limit_s=200)
    budget = Budget(ends=time.monotonic() + 100)
    run_all([("stage", check)], results, budget, device="cuda", kept=tmp_path)
    rows = read(results.rows)
    assert [row.ok for row in rows] == [None]
    assert rows[0].measured.startswith("not tried: ")
    assert rows[0].measured.endswith(" s left, 200 wanted")
    assert worst(rows) == 0


def test_each_thing_that_is_found_is_a_row_before_the_next_is_looked_for(
    results: Results, tmp_path: Path
) -> None:
    def look(place: Place) -> Any:
        yield equal("first", 1, 1)
        assert [row.check for row in read(results.rows)] == ["name: first"]
        raise ZeroDivisionError

    place = Place(device="cpu", folder=tmp_path, kept=tmp_path)
    with pytest.raises(ZeroDivisionError):
        run_here("stage", Check(name="name", look=look, limit_s=1), place, results)
    assert len(read(results.rows)) == 1


def test_the_calls_of_the_readme_name_checks_that_there_are() -> None:
    text = README.read_text().replace("\\\n", " ")
    calls = re.findall(r"run\.py ((?:[a-z]+(?:/\w+)?\s+)+)--jobs", text)
    assert len(calls) == 2
    names = [name for call in calls for name in call.split()]
    assert {stage for stage, _ in stages.chosen(names)} == set(stages.STAGES)


def test_a_check_of_the_tap_that_breaks_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = CompletedProcess(args=[], returncode=1, stdout="", stderr="Traceback …\nRuntimeError: no graphs")
    monkeypatch.setattr(works, "run", lambda command: broken)
    _, check = stages.check_named("works/tap")
    with pytest.raises(RuntimeError, match=r"(?s)it ended with 1: .*no graphs"):
        list(check.look(Place(device="cuda", folder=tmp_path, kept=tmp_path)))


def test_rows_are_read_back_a_cut_line_left_out_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    row = Row(stage="s", check="c|d", ok=False, measured={"a": [1]}, expected="2", seconds=1.5)
    append(path, row)
    with path.open("a") as file:
        file.write('{"stage": "cu')
    assert read(path) == [row]
    assert '| s | c/d | FAIL | {"a": [1]} | 2 | 1.5 |' in table([row])
    assert counts([row]) == "0 ok, 1 FAIL, 0 -"


def test_the_names_on_the_command_line_are_stages_or_checks() -> None:
    everything = stages.chosen(list(stages.STAGES))
    names = [f"{stage}/{check.name}" for stage, check in everything]
    assert len(set(names)) == len(names) > 30
    assert stages.chosen(["exact/gpt"])[0][1].name == "gpt"
    for wrong in ("exact/nothing", "nothing", "nothing/gpt"):
        with pytest.raises(ValueError, match="no check"):
            stages.chosen([wrong])


def ok(found: Any) -> dict[str, bool | None]:
    return {each.what: each.ok for each in found}


HISTORY = [
    ["segment_alloc", 4096, 2 << 20, 0, [0, 0]],
    ["alloc", 4096, 100, 0, [0, 0]],
    ["alloc", 8192, 200, 7, [0, 3]],
    ["free_requested", 8192, 200, 7, [0, 3]],
    ["oom", 5, 1 << 40, 0, [0, 0]],
    ["free_completed", 8192, 200, 7, [0, 3]],
    ["snapshot", 0, 0, 0, [0, 0]],
]


def stored(history: list[list[Any]] = HISTORY) -> list[tuple[Any, ...]]:
    """Such events as the database has them, and what the process's end frees."""
    rows = [
        (
            action,
            None if action == "oom" else address,
            size,
            stream,
            ".".join(map(str, pool)) if any(pool) else None,
        )
        for action, address, size, stream, pool in history
    ]
    return [*rows, ("free_requested", 4096, 100, 0, None), ("free_completed", 4096, 100, 0, None)]


def test_events_are_compared_one_by_one_until_the_trainings_snapshot() -> None:
    assert ok(exactly.judge_events(stored(), HISTORY))["events equal the history's"]
    for place, value in ((1, 512), (2, 101), (3, 1)):
        other = [[*each] for each in HISTORY]
        other[1][place] = value
        found = exactly.judge_events(stored(), other)[0]
        assert found.ok is False
        assert found.measured.startswith("1 of 6 equal; 6 recorded; at 1: ")
    assert exactly.judge_events(stored(HISTORY[1:]), HISTORY)[0].ok is False
    assert exactly.judge_events([], [])[0].ok is False, "nothing compared is nothing equal"


def test_pools_are_not_compared_where_the_history_tells_none() -> None:
    without = [[*each[:4], [0, 0]] for each in HISTORY]
    assert exactly.judge_events(stored(), without)[0].ok
    other = [[*each[:4], [0, 4] if any(each[4]) else each[4]] for each in HISTORY]
    assert exactly.judge_events(stored(), other)[0].ok is False


def test_blocks_and_segments_are_those_of_the_snapshot() -> None:
    told = {"live": {"4096": [100, 512, "active_allocated"]}, "segments_bytes": 2 << 20}
    assert all(ok(exactly.judge_end(stored(), told)).values())
    assert ok(exactly.judge_end(stored(), {"live": {}, "segments_bytes": 1})) == {
        "blocks alive at the end": False,
        "reserved at the end": False,
    }


def test_bytes_at_each_steps_end_are_found_by_the_number_of_allocations_and_frees() -> None:
    def event(action: str, *figures: int | None) -> tuple[Any, ...]:
        requested, allocated, active = figures
        return (action, 4096, 100, 0, None, requested, allocated, 2 << 20, active)

    rows = [
        event("alloc", 100, 512, 512),
        event("alloc", 200, 1024, 1024),
        event("free_requested", 200, 512, 1024),
        event("free_completed", 100, 512, 512),
    ]
    told = {"figures": [[1, 0, 100, 512, 512], [2, 1, 100, 512, 512]]}
    assert exactly.judge_course(rows, told).ok
    assert exactly.judge_course(rows[:3], told).measured == (
        "1 of 2 equal; [(1, (200, 512, 1024), (100, 512, 512))]"
    )
    unknown = [event("alloc", 100, None, None), *rows[1:]]
    assert exactly.judge_course(unknown, told).ok is False
    assert exactly.judge_course(rows, {"figures": []}).ok is False, "nothing compared is nothing equal"


def test_a_free_that_waited_is_one_that_was_not_completed_at_once() -> None:
    at_once = [each for each in HISTORY if each[0] != "oom"]
    assert ok(exactly.judge_streams(stored()))["frees that waited"]
    assert ok(exactly.judge_streams(stored(at_once)))["frees that waited"] is False
    assert ok(exactly.judge_pools(stored()))["private pools"]
    assert ok(exactly.judge_mapped(stored()))["maps and unmaps"] is False


def test_all_peaks_are_compared() -> None:
    names = ("requested", "allocated", "active", "reserved")
    row = {f"peak_{name}_bytes": at for at, name in enumerate(names)} | {"complete": True}
    stats = {f"{name}_bytes.all.peak": at for at, name in enumerate(names)}
    assert all(ok(exactly.judge_peaks(row, {"stats": stats, "max_allocated": 1})).values())
    found = ok(exactly.judge_peaks(row, {"stats": dict.fromkeys(stats, 9), "max_allocated": 9}))
    assert list(found.values()) == [False] * 5 + [True]


def test_a_ratio_has_an_interval_and_needs_samples() -> None:
    off = [1.0 + 0.001 * (number % 7) for number in range(40)]
    slower = [1.02 * each for each in off]
    low, high = interval_of(slower, off)
    assert 1.015 < low <= 1.02 <= high < 1.025
    assert ok(judge_ratio("r", slower, off, at_most=1.01)) == {
        "r": False, "r: can be told apart": None, "r: samples": True,
    }  # fmt: skip
    assert ok(judge_ratio("r", off, off, at_most=1.01))["r"]
    assert ok(judge_ratio("r", off[:3], off[:3], at_most=1.01))["r: samples"] is False
    assert ok(judge_ratio("r", slower, off, at_most=None)) == {"r": None}


def test_steps_are_taken_in_whole_blocks_after_the_warm_up() -> None:
    assert blocks_of([9.0] * 5 + [1.0] * 10 + [2.0] * 10 + [7.0] * 3) == [1.0, 2.0]
    assert blocks_of([9.0, 1.0]) == [1.0]


def test_device_memory_that_is_added_fails() -> None:
    def told(own: int | None) -> dict[str, Any]:
        return {"anonymous_bytes": 1, "driver": {"own": own}, "stats": {"reserved_bytes.all.peak": 5}}

    assert ok(judge_memory([told(7)], [told(7)]))["device memory added, bytes"]
    assert ok(judge_memory([told(8)], [told(7)]))["device memory added, bytes"] is False
    assert "device memory added, bytes" not in ok(judge_memory([told(None)], [told(7)]))


def replayed(same: int, off_bytes: int, total: int = 1000) -> SimpleNamespace:
    return SimpleNamespace(
        num_allocations=total, num_same_address=same, num_same_decision=same, recorded_peak_bytes=0,
        reserved_difference_bytes=off_bytes, replayed_peak_bytes=0,
        is_exact=same == total and not off_bytes,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("same", "off_bytes", "exact", "close"),
    [
        (1000, 0, True, True),
        (999, 20 << 20, False, True),
        (998, 0, False, False),
        (1000, 21 << 20, False, False),
    ],
)
def test_replays_are_exact_by_default_and_close_under_other_settings(
    same: int, off_bytes: int, exact: bool, close: bool
) -> None:
    found = replayed(same, off_bytes)
    assert judge_check("w", found, exact=True)[0].ok is exact
    assert judge_check("w", found, exact=False)[0].ok is close
    assert judge_check("w", replayed(0, 0, total=0), exact=False)[0].ok is False


def test_a_prediction_is_held_against_the_size_as_it_was_recorded() -> None:
    def answer(size: int, live: int) -> Any:
        bounds = {"low_bytes": live - 7, "high_bytes": live + 7}
        rows = [{"size": size, "live_peak_bytes": live, "reserved_peak_bytes": None} | bounds]
        return SimpleNamespace(rows=SimpleNamespace(to_pylist=lambda: rows), sentence="says")

    assert ok(judge_fit("f", answer(16, 1005), answer(16, 1000), 16, 0.01))["f: live_peak_bytes"]
    assert ok(judge_fit("f", answer(16, 1020), answer(16, 1000), 16, 0.01))["f: live_peak_bytes"] is False
    assert ok(judge_fit("f", answer(16, 1005), answer(16, 1000), 16, 0.01))["f: within its own bounds"]
    assert (
        ok(judge_fit("f", answer(16, 992), answer(16, 1000), 16, 0.01))["f: within its own bounds"] is False
    )
    assert ok(judge_fit("f", answer(8, 1), answer(16, 1), 16, 0.01)) == {"f": False}


def test_nan_is_within_no_bound() -> None:
    assert within("w", float("nan"), 1).ok is False
