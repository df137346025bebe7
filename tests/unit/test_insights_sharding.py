"""What a job of several ranks has sharded already, by the bytes that its ranks hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from rankmem_aggregator.insights.sharding import already
from rankmem_aggregator.insights.windows import Place

PLACE = Place(
    session_id="0", attempt=0, rank=0, device="cpu", device_type="cpu", allocator=None, settings=None,
    total_bytes=None,
)  # fmt: skip
WHOLE = {"size_bytes": 400, "grad_size_bytes": 400, "dtype": "float32", "shape": "[10, 10]"}


TABLE = {"size_bytes": 200, "grad_size_bytes": 200, "dtype": "float32", "shape": "[10, 10]"}
"""Half of it, by a DTensor."""


def asked(*ranks: dict[str, int], places: Sequence[dict[str, int]] = ()) -> Any:
    """Answers what ranks held at their peaks, and where they are in the job."""
    none = dict.fromkeys(("tp", "pp", "ep"))
    where = [
        {"rank": rank, "attempt": 0, **none, **(places[rank] if places else {})} for rank in range(len(ranks))
    ]
    rows = [
        {"rank": rank, "attempt": 0, "device_type": "cpu", "group_name": name, "bytes_at_rank_peak": size}
        for rank, held in enumerate(ranks)
        for name, size in held.items()
    ]
    answers = {"held_at_own_peaks": rows, "rank_coordinates": where}
    return lambda name, **_: pa.Table.from_pylist(answers[name])


@pytest.mark.parametrize(
    ("weights", "ranks", "found"),
    [
        ([WHOLE], [{"parameter": 400, "optimizer_state": 800}] * 2, None),
        ([WHOLE], [{"parameter": 400, "optimizer_state": each} for each in (800, 0)], None),
        ([WHOLE], [{"parameter": 400, "optimizer_state": each} for each in (480, 320)], "state"),
        # Each at its own peak, which may come before all state does; of all that is trained, or of less.
        ([WHOLE], [{"parameter": 400, "optimizer_state": each} for each in (800, 804)], None),
        ([WHOLE], [{"parameter": 400, "optimizer_state": each} for each in (800, 300)], None),
        ([WHOLE], [{"parameter": 400, "optimizer_state": each} for each in (800, 400)], None),
        (
            [WHOLE | {"grad_size_bytes": 200}],
            [{"parameter": 400, "optimizer_state": s} for s in (250, 150)],
            "state",
        ),
        # Equal shards, or the momentum of SGD.
        ([WHOLE], [{"parameter": 400, "optimizer_state": 400}] * 2, None),
        # Other stages have other parameters, and other state.
        ([WHOLE], [{"parameter": each, "optimizer_state": 2 * each} for each in (400, 300)], None),
        ([TABLE], [{"parameter": 200, "optimizer_state": 400}] * 2, "parameters"),
        (
            [{"size_bytes": 100, "grad_size_bytes": 0, "dtype": "int8", "shape": "[10, 10]"}],
            [{"parameter": 100}] * 2,
            None,
        ),
        (
            [{"size_bytes": 100, "grad_size_bytes": None, "dtype": None, "shape": None}],
            [{"parameter": 100}] * 2,
            None,
        ),
    ],
)
def test_what_is_sharded_is_told_by_shapes_and_by_what_ranks_hold(
    weights: list[dict[str, Any]], ranks: list[dict[str, int]], found: str | None
) -> None:
    assert already(asked(*ranks), PLACE, weights) == found


def test_parameters_split_by_tensor_parallelism_are_whole_to_data_parallel_ranks() -> None:
    held = [{"parameter": 200, "optimizer_state": 400}] * 4
    two = [{"tp": rank % 2} for rank in range(4)]
    assert already(asked(*held, places=two), PLACE, [TABLE]) is None
    # Over two and two ranks.
    assert already(asked(*held, places=two), PLACE, [TABLE | {"size_bytes": 100}]) == "parameters"


def test_one_part_beside_whole_parameters_is_not_a_sharded_job() -> None:
    held = [{"parameter": 600, "optimizer_state": 1200}] * 2
    assert already(asked(*held), PLACE, [TABLE, WHOLE]) is None
    unknown = {"size_bytes": None, "dtype": "float32", "shape": "[10, 10]"}
    assert already(asked(*held), PLACE, [TABLE, TABLE, WHOLE | {"size_bytes": 300}, unknown]) == "parameters"


def test_state_is_compared_between_ranks_of_one_stage_alone() -> None:
    held = [{"parameter": 400, "optimizer_state": each} for each in (480, 320, 800, 800)]
    stages = [{"pp": rank // 2} for rank in range(4)]
    assert already(asked(*held, places=stages), PLACE, [WHOLE]) == "state"
    assert already(asked(*held, places=[{"pp": rank} for rank in range(4)]), PLACE, [WHOLE]) is None


def test_the_devices_of_a_rank_add_up() -> None:
    answers = asked(*[{"parameter": 200, "optimizer_state": 400}] * 2)
    tables = {"rank_coordinates": answers("rank_coordinates")}
    # Of two devices each: the ranks' state is equal, that of their last devices is not.
    parts = [(0, 360), (0, 440), (1, 400), (1, 400)]
    tables["held_at_own_peaks"] = pa.Table.from_pylist(
        [
            {"rank": r, "attempt": 0, "device_type": "cpu", "group_name": name, "bytes_at_rank_peak": size}
            for r, state in parts
            for name, size in (("parameter", 200), ("optimizer_state", state))
        ]
    )
    assert already(lambda name, **_: tables[name], PLACE, [WHOLE]) is None
