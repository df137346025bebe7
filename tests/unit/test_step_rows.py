"""The last steps' figures of a spool, from the shipper's rows to what the trainer reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from rankmem_agent.spool import step_figures
from rankmem_agent.spool.step_figures import StepFigure
from rankmem_ship.step_rows import StepRows


def _batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows))


def _step(step: int, peak: int, last: int, device: str = "cuda:0") -> dict[str, Any]:
    return {"step": step, "device": device, "peak_bytes": peak, "last_bytes": last}


def _bucket(reserved: int | None, active: int | None, allocated: int | None) -> dict[str, Any]:
    return {
        "device": "cuda:0",
        "reserved_last_bytes": reserved,
        "active_last_bytes": active,
        "allocated_last_bytes": allocated,
    }


def test_nothing_is_written_unless_the_trainer_asks(tmp_path: Path) -> None:
    rows = StepRows(tmp_path)
    rows.note([("step_bucket", _batch(_step(0, 5, 3)))])
    assert list(tmp_path.iterdir()) == []
    step_figures.want(tmp_path)
    assert step_figures.read(tmp_path) == []
    rows.note([("step_bucket", _batch(_step(1, 6, 4)))])
    assert step_figures.read(tmp_path) == [StepFigure(1, "cuda:0", 6, 4, None)]


def test_a_step_of_several_parts_has_its_highest_peak_and_its_last_bytes(tmp_path: Path) -> None:
    step_figures.want(tmp_path)
    rows = StepRows(tmp_path)
    rows.note([("step_bucket", _batch(_step(0, 9, 3), _step(0, 5, 2), _step(0, 7, 1, "cuda:1")))])
    rows.note([("step_bucket", _batch(_step(0, 9, 3), _step(0, 5, 2)))])  # sent again
    assert step_figures.read(tmp_path) == [
        StepFigure(0, "cuda:1", 7, 1, None),
        StepFigure(0, "cuda:0", 9, 2, None),
    ]


def test_headroom_is_what_is_free_and_what_the_allocator_holds_unused(tmp_path: Path) -> None:
    step_figures.want(tmp_path)
    rows = StepRows(tmp_path)
    sample = ("process_sample", _batch({"device": "cuda:0", "device_free_bytes": 100}))
    unknown = ("process_sample", _batch({"device": "cuda:0", "device_free_bytes": None}))
    ended = ("step_bucket", _batch(_step(0, 9, 3)))
    rows.note([ended, sample, ("memory_bucket", _batch(_bucket(50, 20, 10)))])
    rows.note([("step_bucket", _batch(_step(1, 9, 3))), unknown])
    rows.note([("step_bucket", _batch(_step(2, 9, 3))), ("memory_bucket", _batch(_bucket(50, None, 10)))])
    rows.note([("step_bucket", _batch(_step(3, 9, 3))), ("memory_bucket", _batch(_bucket(10, 20, 20)))])
    assert [figure.headroom_bytes for figure in step_figures.read(tmp_path)] == [130, 130, 140, 100]


def test_the_latest_steps_are_kept(tmp_path: Path) -> None:
    step_figures.want(tmp_path)
    rows = StepRows(tmp_path)
    num = step_figures.ROWS_MAX + 3
    for step in range(num):
        rows.note([("step_bucket", _batch(_step(step, 9, 3)))])
    found = step_figures.read(tmp_path)
    assert [figure.step for figure in found] == list(range(3, num))


def test_a_file_of_another_version_has_no_figures(tmp_path: Path) -> None:
    (tmp_path / step_figures.NAME).write_text('{"format": "rankmem-steps", "version": 2, "steps": [[1]]}')
    assert step_figures.read(tmp_path) == []
