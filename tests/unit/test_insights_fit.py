"""Will it fit: trainings made by hand at several sizes, sizes that are named, and what cannot be told."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from constructed import RankLog, clear, empty_database, store_logs, store_rows
from json_schema import faults
from rankmem_aggregator.insights import align, fit
from rankmem_aggregator.insights.align import aligned, paired_within_runs
from rankmem_aggregator.insights.capacity import SPARE_BYTES
from rankmem_aggregator.insights.fit import SCHEMA
from rankmem_aggregator.insights.fit_sizes import steady
from rankmem_aggregator.insights.json_schemas import schema_of
from rankmem_aggregator.insights.laws import likeness
from rankmem_aggregator.insights.windows import NEVER, StepSize, peak_of, step_sizes
from rankmem_aggregator.quantity_text import bytes_text
from rankmem_aggregator.query import open as opening
from rankmem_aggregator.query.queries import Queries
from rankmem_cli.main import app
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import RankmemError
from sized_steps import (
    HIDDEN_BYTES,
    LAYERS,
    SAMPLE_BYTES,
    WEIGHT_BYTES,
    given_inputs,
    peak_bytes,
    sized_steps,
)

pytestmark = pytest.mark.slow

Store = Callable[..., Queries]
OTHER = "0SESSION0002"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fit") / "job.duckdb"
    empty_database(str(path)).close()
    return path


@pytest.fixture
def stored(database: Path) -> Any:
    opened: list[Queries] = []

    def store(
        *logs: RankLog,
        gap: bool = False,
        inputs: Sequence[dict[str, Any]] = (),
        control: Sequence[dict[str, Any]] = (),
    ) -> Queries:
        for queries in opened:
            queries.close()
        with duckdb.connect(str(database)) as connection:
            clear(connection)
            store_logs(connection, logs)
            store_rows(connection, "step_input", inputs)
            store_rows(connection, "control_change", control)
            if gap:
                hole = {
                    "sequence_first": 4,
                    "sequence_last": 5,
                    "records": 2,
                    "why": "lost",
                    "attempt": 0,
                    "rank": 0,
                }
                store_rows(connection, "gap", [hole | {"session_id": logs[0].session_id}])
        opened.append(opening.open_queries(database, Credentials()))
        return opened[-1]

    yield store
    for queries in opened:
        queries.close()


def peaks(answer: Any) -> dict[int, int]:
    return {row["size"]: row["live_peak_bytes"] for row in answer.rows.to_pylist()}


def test_from_two_sizes_each_block_gets_its_bytes_and_the_peak_moves(stored: Store) -> None:
    answer = stored(sized_steps([2, 2, 2, 4, 4, 4])).fit(batch=[1, 16, 64, 512], recorded=[2, 4])
    assert peaks(answer) == {batch: peak_bytes(batch) for batch in (1, 2, 4, 16, 64, 512)}
    # At 512 it is the scores, which grow with the square, where at 4 it was the loss: no line through peaks.
    assert peak_bytes(512) > 1.4 * (peak_bytes(4) + (peak_bytes(4) - peak_bytes(2)) / 2 * 508)
    assert (answer.verdict, answer.certainty) == ("fine", "predicted")
    assert answer.figures["num_matched"] == answer.figures["num_blocks"]


def test_the_optimizers_state_is_the_same_though_the_first_step_made_it_after_its_gradients(
    stored: Store,
) -> None:
    answer = stored(sized_steps([2, 2, 4, 4], keeps_gradients=True)).fit(batch=[16], recorded=[2, 4])
    assert (peaks(answer)[16], answer.figures["recorded_steps"]) == (peak_bytes(16), [1, 3])


def test_samples_that_are_loaded_one_by_one_are_no_other_program(stored: Store) -> None:
    log = sized_steps([8, 8, 16, 16], loads_bytes=SAMPLE_BYTES)
    answer = stored(log).fit(batch=[64], recorded=[8, 16])
    assert peaks(answer)[64] == peak_bytes(64)
    assert answer.figures["num_matched"] == answer.figures["num_blocks"]


def test_samples_that_are_alive_one_after_the_other_need_room_for_one(stored: Store) -> None:
    log = sized_steps([8, 8, 16, 16], loads_bytes=1 << 30, loads_in_turn=True)
    found = peaks(stored(log).fit(batch=[64], recorded=[8, 16]))
    assert found[64] == found[16] == found[8] == (1 << 30) + LAYERS * WEIGHT_BYTES * 3


def test_samples_that_the_next_ones_find_are_as_many_more(stored: Store) -> None:
    log = sized_steps([8, 8, 8, 16, 16], loads_bytes=1 << 24, keeps_samples=True, weight_bytes=64)
    found = peaks(stored(log).fit(batch=[64], recorded=[8, 16]))
    assert {size: peak - size * SAMPLE_BYTES - LAYERS * 64 * 3 for size, peak in found.items()} == {
        size: 2 * size << 24 for size in (8, 16, 64)
    }


def test_samples_whose_bytes_the_batch_does_not_divide_are_not_padded(stored: Store) -> None:
    log = sized_steps([7, 7, 14, 14], loads_bytes=1 << 20)
    assert peaks(stored(log).fit(batch=[28], recorded=[7, 14]))[28] == peak_bytes(28)


@pytest.mark.parametrize(("more", "names_it"), [(1, True), (-1, False)])
@pytest.mark.parametrize("asked", [{}, {"batch": [2]}])
def test_a_recorded_step_that_does_not_fit_is_told(
    asked: dict[str, Any], more: int, names_it: bool, stored: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    usable = 4 * peak_bytes(4)

    def with_higher(*given: Any) -> Any:
        first, second, *rest = step_sizes(*given)
        return [first, replace(second, peak_bytes=usable + more), *rest]

    monkeypatch.setattr(fit, "step_sizes", with_higher)
    answer = stored(sized_steps([2, 2, 2, 2, 4, 4, 4])).fit(recorded=[2, 4], in_bytes=usable, **asked)
    held = f"; but step 1 held {bytes_text(usable + more)}"
    assert (held in answer.sentence) == names_it
    assert answer.verdict == ("finding" if asked and names_it else "fine")
    assert "fits in" in answer.sentence
    assert any("predictions are for steps as large as those above" in note for note in answer.notes)


@pytest.mark.parametrize(
    ("figures", "chosen"),
    [
        ([(9, 9), (8, 5), (8, 5), (8, 5), (7, 4)], 3),  # no batch is loaded ahead in the last one
        ([(8, 5), (8, 5), (8, 9), (8, 5), (8, 9)], 3),  # every other one evaluates
        ([(8, 5), (8, 5), (9, 9), (8, 5), (9, 9)], 3),
        ([(8, 5), (8, 5), (7, 4)], 1),
        ([(8, 5), (8, 5), (6, 5), (7, 5)], 1),
        ([(5, 3)] * 12 + [(8, 5)] * 8, 19),  # the training is another one by now
        ([(8, 5), (8, 5), (None, None), (None, None)], 1),  # nothing is allocated on the device
        ([(None, None)] * 3, 2),
    ],
)
def test_the_steady_step_is_a_usual_one(
    figures: Sequence[tuple[int | None, int | None]], chosen: int
) -> None:
    steps = [
        StepSize(
            step=step,
            from_seq=step - 1,
            to_seq=step,
            input_bytes=4,
            peak_bytes=peak,
            allocated_bytes=allocated,
        )
        for step, (peak, allocated) in enumerate(figures)
    ]
    assert [each.step for each in steady(steps)] == [chosen]


def test_steps_without_operators_are_none_to_go_by(stored: Store) -> None:
    batches = [2, 2, 2, 2]
    known = stored(sized_steps(batches[:2])).whatif().rows.to_pylist()
    log = sized_steps(batches)
    queries = stored(log, inputs=given_inputs(log, batches)[:2], control=[log.in_summary(2)])
    assert peaks(queries.fit(batch=[8])) == {2: peak_bytes(2), 8: peak_bytes(8)}
    assert queries.whatif().rows.to_pylist() == known
    log = sized_steps(batches)
    queries = stored(log, inputs=given_inputs(log, batches)[:1], control=[log.in_summary(1)])
    answer = queries.fit(batch=[8])
    assert (answer.verdict, "no two steps in a row" in answer.sentence) == ("cannot tell", True)


def test_recorded_shapes_say_which_batches_they_are(stored: Store) -> None:
    batches = [2, 2, 4, 4]
    log = sized_steps(batches)
    queries = stored(log, inputs=given_inputs(log, batches))
    answer = queries.fit(batch=[16])
    assert peaks(answer) == {batch: peak_bytes(batch) for batch in (2, 4, 16)}
    assert answer.figures["recorded_sizes"] == [2, 4]
    lengths = queries.fit(length=["2x"])
    assert (lengths.verdict, "Ask for --batch" in lengths.sentence) == ("cannot tell", True)
    assert peaks(queries.fit(length=[16], recorded=[2, 4])) == peaks(answer)  # who says so is believed


def test_of_two_lengths_it_is_asked_which_one_is_meant(stored: Store) -> None:
    log = sized_steps([2, 2, 4, 4])
    rows = given_inputs(log, [2, 2, 4, 4])
    texts = [row | {"shape": f"[1, {size}]"} for row, size in zip(rows, (16, 16, 32, 32), strict=True)]
    labels = [
        row | {"argument": "labels", "shape": f"[1, {s}]"}
        for row, s in zip(rows, (8, 8, 16, 16), strict=True)
    ]
    queries = stored(log, inputs=texts + labels)
    refused = queries.fit(length=[64])
    assert "0 [1, 16], labels [1, 8] and 0 [1, 32], labels [1, 16]. Say it" in refused.sentence
    (row,) = [row for row in queries.fit(length=["2x"]).rows.to_pylist() if not row["is_recorded"]]
    assert row["live_peak_bytes"] == peak_bytes(8)


def test_of_one_size_the_shapes_say_the_batch_too(stored: Store) -> None:
    log = sized_steps([4, 4])
    answer = stored(log, inputs=given_inputs(log, [4, 4])).fit(batch=[8])
    assert peaks(answer)[8] == peak_bytes(8)


def test_where_not_all_steps_have_shapes_the_blocks_of_the_input_count(stored: Store) -> None:
    log = sized_steps([2, 2, 4, 4])
    answer = stored(log, inputs=given_inputs(log, [2, 2, 4, 4])[:3]).fit(batch=["2x"])
    assert answer.figures["recorded_sizes"] == [2, 4]  # as the shapes of other steps of the same size say
    assert {row["live_peak_bytes"] for row in answer.rows.to_pylist() if row["times"] == 2} == {peak_bytes(8)}


def test_from_one_size_it_is_an_upper_bound_that_leaves_the_model_as_it_is(stored: Store) -> None:
    answer = stored(sized_steps([4, 4, 4])).fit(batch=["2x"])
    (row,) = [row for row in answer.rows.to_pylist() if not row["is_recorded"]]
    assert row["live_peak_bytes"] == peak_bytes(8)
    assert (row["low_bytes"], row["high_bytes"]) == (round(peak_bytes(8) * 0.8), round(peak_bytes(8) * 1.01))
    assert "an upper bound" in answer.error


def test_from_one_size_the_optimizers_scratch_does_not_grow_with_the_batch(stored: Store) -> None:
    of = {"scratch": "aten::sqrt", "weight_bytes": 200 << 20}
    real = peaks(stored(sized_steps([2, 2, 4, 4], **of)).fit(batch=[64], recorded=[2, 4]))[64]
    assert peaks(stored(sized_steps([4, 4], **of)).fit(batch=[64], recorded=[4]))[64] == real


def test_from_one_size_the_real_peak_may_be_one_without_growth_of_what_is_as_large_as_a_parameter(
    stored: Store,
) -> None:
    queries = stored(sized_steps([2, 2, 4, 4], parts=1, weight_bytes=200 << 20))
    real = peaks(queries.fit(batch=[64], recorded=[2, 4]))[64]
    queries = stored(sized_steps([4, 4], parts=1, weight_bytes=200 << 20))
    answer = queries.fit(batch=[64], recorded=[4], in_bytes=real + (1 << 20))
    (row,) = [row for row in answer.rows.to_pylist() if not row["is_recorded"]]
    assert row["low_bytes"] <= real < 0.8 * row["live_peak_bytes"]
    assert row["fits"] == "unclear"
    assert row["low_bytes"] == pytest.approx(row["live_peak_bytes"] * (1 - answer.figures["below_share"]))
    assert f"up to {answer.figures['below_share']:.0%} below" in answer.error


def test_from_one_size_a_segment_that_may_not_come_is_said(stored: Store) -> None:
    queries = stored(sized_steps([4, 4]))
    said = "needs and reserved are upper bounds"
    assert any(said in note for note in queries.fit(batch=["2x"], as_device="cuda").notes)
    assert not any(said in note for note in queries.fit(batch=["2x"]).notes)


@pytest.mark.parametrize(
    ("question", "words"), [({"length": ["2x"]}, "one length"), ({"batch": ["0.5x"]}, "smaller")]
)
def test_one_size_does_not_carry_lengths_or_smaller_batches(
    question: dict[str, Any], words: str, stored: Store
) -> None:
    answer = stored(sized_steps([4, 4, 4])).fit(**question)
    assert answer.verdict == "cannot tell"
    assert words in answer.sentence


@pytest.mark.parametrize(("power", "power_bytes"), [(3, 4096), (4, 512)])
def test_a_power_that_is_small_at_recorded_sizes_is_followed(
    power: int, power_bytes: int, stored: Store
) -> None:
    few = {"power": power, "power_bytes": power_bytes, "weight_bytes": 1024}
    answer = stored(sized_steps([4, 4, 8, 8], **few)).fit(batch=[512], recorded=[4, 8])
    beside = LAYERS * 3 * 1024 + 512 * (SAMPLE_BYTES + LAYERS * HIDDEN_BYTES)
    assert peaks(answer)[512] == beside + 512**power * power_bytes
    assert f"{answer.figures['above_share']:.3f}" == "0.010"


def test_what_grows_by_no_whole_power_is_told_from_a_line_to_its_exponent(stored: Store) -> None:
    few = {"power": 2.5, "power_bytes": 4096, "weight_bytes": 1024}
    answer = stored(sized_steps([4, 4, 8, 8], **few)).fit(batch=[512], recorded=[4, 8], in_bytes=20 << 30)
    (row,) = [row for row in answer.rows.to_pylist() if not row["is_recorded"]]
    real = peaks(stored(sized_steps([512, 512], **few)).fit(recorded=[512]))[512]
    assert row["live_peak_bytes"] < 0.3 * real < real <= row["high_bytes"] < 1.02 * real
    assert row["fits"] == "unclear"
    assert "what grows otherwise may go on as a line or with its exponent" in answer.error


def test_a_table_of_batch_by_batch_is_in_the_most_of_one_size(stored: Store) -> None:
    batches = [512, 512]
    log = sized_steps(batches, power=2, weight_bytes=1024)
    answer = stored(log, inputs=given_inputs(log, batches)).fit(batch=[1 << 23])
    (row,) = [row for row in answer.rows.to_pylist() if not row["is_recorded"]]
    table = 4 << 46
    assert row["live_peak_bytes"] < table < row["high_bytes"] < 1.5 * table
    assert answer.certainty == "suspected"
    assert "tables of batch by batch" in answer.error


@pytest.mark.parametrize(("times", "certainty"), [("2x", "predicted"), ("2.5x", "suspected")])
def test_one_size_is_suspected_far_from_it(times: str, certainty: str, stored: Store) -> None:
    answer = stored(sized_steps([4, 4, 4])).fit(batch=[times])
    assert answer.certainty == certainty
    assert "as long as nothing else grows faster than the input" in answer.error


@pytest.mark.parametrize(("operator", "above"), [("aten::mul", 0.01), ("aten::convolution_backward", 0.02)])
def test_one_size_does_not_show_the_scratch_of_convolutions(
    operator: str, above: float, stored: Store
) -> None:
    answer = stored(sized_steps([4, 4], scratch=operator)).fit(batch=["2x"])
    assert round(answer.figures["above_share"], 4) == above
    assert ("convolutions may take other scratch at other sizes" in answer.error) == (above > 0.01)


def test_sizes_that_a_model_pads_are_refused(stored: Store) -> None:
    """Batches 3 and 6, padded to 4 and 8."""
    answer = stored(sized_steps([4, 4, 8, 8])).fit(batch=[12], recorded=[3, 6])
    assert (answer.verdict, "seems to pad its input" in answer.sentence) == ("cannot tell", True)
    assert stored(sized_steps([4, 4, 8, 8])).fit(batch=[12], recorded=[4, 8]).verdict == "fine"


def test_shapes_of_as_many_bytes_are_not_one_size(stored: Store) -> None:
    batches = [4] * 4
    log = sized_steps(batches)
    inputs = given_inputs(log, batches)
    for row in inputs[2:]:
        row["shape"] = "[8, 128]"
    answer = stored(log, inputs=inputs).fit(batch=["2x"])
    assert answer.verdict == "cannot tell"
    assert "have other shapes: 0 [4, 256] and 0 [8, 128]" in answer.sentence


def test_where_the_batch_may_be_the_second_dimension_the_user_is_asked(stored: Store) -> None:
    log = sized_steps([4, 4])
    inputs = [row | {"shape": "[128, 4]"} for row in given_inputs(log, [4, 4])]  # words have 8 bytes
    queries = stored(log, inputs=inputs)
    answer = queries.fit(batch=[8])
    assert answer.verdict == "cannot tell"
    assert "the first or the second dimension of 0 [128, 4]. Say it with --recorded" in answer.sentence
    assert peaks(queries.fit(batch=[8], recorded=[4]))[8] == peak_bytes(8)
    assert {row["times"] for row in queries.fit(batch=["2x"]).rows.to_pylist()} == {1, 2}


def test_the_input_whose_first_dimension_is_taken_for_the_batch_is_named(stored: Store) -> None:
    log = sized_steps([4, 4])
    queries = stored(log, inputs=given_inputs(log, [4, 4]))
    assert "at batch 4 (the first dimension of 0 [4, 256])" in queries.fit(batch=[8]).notes[0]
    assert "first dimension" not in queries.fit(batch=[8], recorded=[4]).notes[0]


def test_an_evaluation_is_not_taken_for_what_the_training_was_given(stored: Store) -> None:
    log = sized_steps([4, 4])
    inputs = [row | {"with_grad": False} for row in given_inputs(log, [400, 400])]
    queries = stored(log, inputs=inputs)
    assert queries.fit(batch=[16]).verdict == "cannot tell"
    assert queries.fit(batch=["4x"]).rows["size"].to_pylist() == [None, None]
    assert peaks(queries.fit(batch=[16], recorded=[4])) == {4: peak_bytes(4), 16: peak_bytes(16)}


@pytest.mark.parametrize("model", ["Net", "module.Net"])
def test_an_evaluation_within_the_step_does_not_grow_in_the_least(model: str, stored: Store) -> None:
    answer = stored(sized_steps([4, 4], evaluates=400, evaluates_as=model)).fit(batch=["16x"])
    (row,) = [row for row in answer.rows.to_pylist() if not row["is_recorded"]]
    evaluation = LAYERS * WEIGHT_BYTES * 4  # with gradients of the step before
    evaluation += 400 * 2 * HIDDEN_BYTES  # its input and a layer
    assert row["live_peak_bytes"] > 10 * evaluation > 10 * peak_bytes(64)
    assert row["low_bytes"] <= evaluation
    assert any("evaluate" in note for note in answer.notes)
    assert not any("evaluate" in note for note in stored(sized_steps([4, 4])).fit(batch=["16x"]).notes)


def test_the_output_of_an_evaluation_that_is_kept_does_not_grow_in_the_least(stored: Store) -> None:
    answer = stored(sized_steps([4, 4], evaluates=400, keeps_evaluated=True)).fit(batch=["16x"])
    (row,) = [row for row in answer.rows.to_pylist() if not row["is_recorded"]]
    evaluation = LAYERS * WEIGHT_BYTES * 4  # with gradients of the step before
    evaluation += 400 * 3 * HIDDEN_BYTES  # its input, its output and that of the step before
    assert row["live_peak_bytes"] > 10 * evaluation > 10 * peak_bytes(64)
    assert row["low_bytes"] <= evaluation
    assert any("evaluate" in note for note in answer.notes)


def test_three_sizes_are_each_predicted_from_the_others(stored: Store) -> None:
    answer = stored(sized_steps([2, 2, 4, 4, 8, 8])).fit(batch=[32], recorded=[2, 4, 8])
    assert peaks(answer)[32] == peak_bytes(32)
    assert (answer.figures["below_share"], answer.figures["num_sizes"]) == (0.01, 3)
    assert "predicted from the others" in answer.error


def test_sizes_of_two_sessions_and_of_two_files(stored: Store, tmp_path: Path) -> None:
    small, large = sized_steps([2, 2]), sized_steps([4, 4], session_id=OTHER)
    queries = stored(small, large)
    answer = queries.fit(small.session_id, batch=[16], recorded=[2, 4], others=[OTHER])
    assert peaks(answer)[16] == peak_bytes(16)
    path = tmp_path / "other.duckdb"
    with empty_database(str(path)) as connection:
        store_logs(connection, [sized_steps([8, 8])])
    with opening.open_queries(path, Credentials()) as other:
        answer = queries.fit(small.session_id, batch=[16], recorded=[2, 8], others=[other])
    assert peaks(answer)[16] == peak_bytes(16)


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        (
            {},
            "in two of the recordings the model was given as much, 2.00 KiB in a step, but a step allocates",
        ),
        (
            {"call_bytes": 0, "size_bytes": 0},
            "two of the recordings do not show what a step is given, and a step",
        ),
    ],
)
@pytest.mark.parametrize("other", [2, 4])
def test_recordings_that_differ_though_the_model_is_given_as_much_are_refused(
    other: int, given: dict[str, int], refused: str, stored: Store
) -> None:
    """As behind a frozen module that pools its outputs, at two lengths."""
    logs = sized_steps([2, 2]), sized_steps([other] * 2, session_id=OTHER)
    inputs = [row | given for log in logs for row in given_inputs(log, [2, 2])]
    answer = stored(*logs, inputs=inputs).fit(logs[0].session_id, batch=["2x"], others=[OTHER])
    assert (answer.verdict == "cannot tell", refused in answer.sentence) == ((other == 4),) * 2


def test_whether_it_fits_is_no_unclear_or_yes_and_the_largest_that_does_is_found(stored: Store) -> None:
    queries = stored(sized_steps([2, 2, 4, 4]))
    for room, fits in ((0.98, "no"), (1.0, "unclear"), (1.02, "yes")):
        answer = queries.fit(batch=[16], recorded=[2, 4], in_bytes=round(peak_bytes(16) * room))
        (row,) = [row for row in answer.rows.to_pylist() if row["size"] == 16]
        assert row["fits"] == fits
        assert answer.verdict == ("finding" if fits == "no" else "fine")
    for batch in (1, 5, 40, 300):
        answer = queries.fit(recorded=[2, 4], in_bytes=peak_bytes(batch))
        assert answer.figures["largest_size"] == batch
        assert answer.figures["largest_surely_size"] in (None, *range(max(1, batch - 5), batch))
    assert queries.fit(recorded=[2, 4], in_bytes=1 << 20).sentence.startswith("no batch fits in 1.00 MiB")


def test_as_on_a_cuda_device_blocks_are_rounded_and_come_in_segments(stored: Store) -> None:
    answer = stored(sized_steps([2, 2, 4, 4])).fit(batch=[16], recorded=[2, 4], as_device="cuda")
    row = answer.rows.to_pylist()[-1]
    live = peak_bytes(16) + 2 * (32 << 20) + (1 << 20)  # cuBLAS's workspaces, from Hopper on
    older = peak_bytes(16) + 2 * ((8 << 20) + (128 << 10)) + (1 << 20)
    assert row["live_peak_bytes"] == live
    assert (row["low_bytes"], row["high_bytes"]) == (round(older * 0.99 * 0.99), round(live * 1.01 * 1.01))
    assert live <= row["needed_bytes"] <= row["reserved_peak_bytes"]
    assert row["reserved_peak_bytes"] % (2 << 20) == 0
    assert answer.certainty == "suspected"
    assert answer.error.startswith("within 2.0%")
    assert "from at least to at most by what may be allocated otherwise on CUDA" in answer.error
    assert any("bf16" in note for note in answer.notes)
    with pytest.raises(RankmemError, match="of tpu is not modelled"):
        stored(sized_steps([2, 2])).fit(as_device="tpu")


@pytest.mark.parametrize(
    ("scratch", "foreach_bytes"), [("aten::sqrt", LAYERS * WEIGHT_BYTES), ("aten::_foreach_sqrt", 0), ("", 0)]
)
def test_an_optimizer_that_would_take_all_tensors_at_once_on_cuda_is_said(
    stored: Store, scratch: str, foreach_bytes: int
) -> None:
    queries = stored(sized_steps([2, 2, 4, 4], scratch=scratch))
    answer = queries.fit(batch=[16], recorded=[2, 4], as_device="cuda")
    assert answer.figures["foreach_bytes"] == foreach_bytes
    assert any("foreach=False" in note for note in answer.notes) == bool(foreach_bytes)
    here = queries.fit(batch=[16], recorded=[2, 4])
    assert here.figures["foreach_bytes"] is None
    assert not any("foreach" in note for note in here.notes)


@pytest.mark.parametrize("at_once", [True, False])
def test_on_cuda_the_scratch_of_all_tensors_at_once_is_told_and_at_least_is_without(
    stored: Store, at_once: bool
) -> None:
    weight_bytes = 10 * WEIGHT_BYTES
    scratch = "aten::_foreach_sqrt" if at_once else "aten::sqrt"
    log = sized_steps([2, 2, 4, 4], scratch=scratch, weight_bytes=weight_bytes)
    queries = stored(log)

    def asked(**more: Any) -> dict[str, Any]:
        answer = queries.fit(batch=[1], recorded=[2, 4], **more)
        found: dict[str, Any] = answer.rows.to_pylist()[0]
        return found

    here, there = asked(), asked(as_device="cuda")
    added = there["live_peak_bytes"] - here["live_peak_bytes"] - (65 << 20)
    # On the CPU it holds one layer's; there all of them, while gradients are alive.
    assert (added > weight_bytes) == (not at_once)
    older = here["live_peak_bytes"] + 2 * ((8 << 20) + (128 << 10)) + (1 << 20)
    assert there["low_bytes"] == round(older * 0.99 * 0.99)
    needed = there["needed_bytes"]
    assert asked(as_device="cuda", in_bytes=round(1.03 * needed) + SPARE_BYTES)["fits"] == "yes"
    assert asked(as_device="cuda", in_bytes=older + (40 << 20) + SPARE_BYTES)["fits"] == "unclear"
    assert asked(as_device="cuda", in_bytes=older // 2 + SPARE_BYTES)["fits"] == "no"


def test_an_optimizer_without_scratch_of_its_parameters_has_none_at_once_either(stored: Store) -> None:
    log = sized_steps([2, 2, 4, 4], scratch="aten::mul_", scratch_bytes=4)
    assert stored(log).fit(batch=[16], recorded=[2, 4], as_device="cuda").figures["foreach_bytes"] == 0


def test_steps_that_did_not_run_the_same_program_are_refused(stored: Store) -> None:
    answer = stored(sized_steps([2, 2, 4, 4], odd=[2, 3])).fit(batch=[16], recorded=[2, 4])
    assert answer.verdict == "cannot tell"
    assert "are the same in both" in answer.sentence
    assert "steps of one size" not in answer.sentence


def test_steps_of_one_size_that_differ_among_themselves_are_named_in_the_reason(stored: Store) -> None:
    answer = stored(sized_steps([2, 2, 4, 4, 4], odd=[0, 1, 4])).fit(batch=[16], recorded=[2, 4])
    assert answer.verdict == "cannot tell"
    assert "steps of one size allocate from" in answer.sentence


def test_bytes_that_follow_the_size_in_no_way_are_refused(stored: Store) -> None:
    log = sized_steps([2, 2, 4, 4])
    for name, row in log.allocations.items():
        if name.startswith("h") and row["size_bytes"] == 4 * HIDDEN_BYTES:
            row["size_bytes"] = HIDDEN_BYTES // 2  # a batch twice as large takes a quarter
    totals = 0
    frees = {row["freed_seq"]: row for row in log.allocations.values() if row.get("freed_seq")}
    births = {row["allocation_id"]: row for row in log.allocations.values()}
    for event in log.events:
        row = births.get(event["seq"]) or frees[event["seq"]]
        event["size_bytes"] = row["size_bytes"]
        totals += row["size_bytes"] if event["seq"] in births else -row["size_bytes"]
        event["requested_bytes"] = totals
    answer = stored(log).fit(batch=[16], recorded=[2, 4])
    assert answer.verdict == "cannot tell"
    assert "in no way that could be continued" in answer.sentence


@pytest.mark.parametrize(
    ("log", "question", "words"),
    [
        (sized_steps([]), {}, "no steps of rank 0, cpu were recorded"),
        (sized_steps([2]), {}, "one step of rank 0, cpu was recorded"),
        (sized_steps([2, 4, 2, 4]), {}, "no two steps in a row"),
        (sized_steps([2, 2, 4, 4]), {"batch": [16]}, "nobody said what batch or length that is"),
    ],
)
def test_what_does_not_carry_an_answer_is_said(
    log: RankLog, question: dict[str, Any], words: str, stored: Store
) -> None:
    answer = stored(log).fit(**question)
    assert (answer.verdict, answer.rows.num_rows) == ("cannot tell", 0)
    assert words in answer.sentence


def test_from_one_size_without_phases_nothing_shows_what_grows(stored: Store) -> None:
    one, two = sized_steps([2, 2]), sized_steps([2, 2, 4, 4])
    for row in [*one.allocations.values(), *two.allocations.values()]:
        row["phase"] = None
    answer = stored(one).fit(batch=["4x"])
    assert (answer.verdict, answer.rows.num_rows) == ("cannot tell", 0)
    assert "is known to be of forward or backward: what grows with the batch" in answer.sentence
    assert stored(two).fit(batch=["4x"]).verdict == "fine", "two sizes show it themselves"


def test_without_operators_nothing_can_be_told(stored: Store) -> None:
    log = sized_steps([2, 2, 4, 4])
    for row in log.allocations.values():
        row["operator"] = None
    assert "has no operators" in stored(log).fit().sentence


def test_blocks_that_do_not_add_up_to_the_recorded_curve_are_refused(stored: Store) -> None:
    log = sized_steps([2, 2, 4, 4])
    del log.allocations["h1.3"]
    assert "are not told of" in stored(log).fit().sentence


def test_an_unfinished_run_is_answered_from_its_last_whole_step(stored: Store) -> None:
    log = sized_steps([2, 2, 4, 4])
    log.ended = None
    log.alloc("next", 7, at=10**10, operator="aten::randn", category="input")
    answer = stored(log).fit(batch=[16], recorded=[2, 4])
    assert peaks(answer)[16] == peak_bytes(16)


def test_the_rank_that_is_meant_and_one_that_is_not_there(stored: Store) -> None:
    queries = stored(sized_steps([2, 2, 2]), sized_steps([4, 4, 4], rank=1))
    assert queries.fit().figures["rank"] == 1
    assert queries.fit(rank=0).figures["rank"] == 0
    with pytest.raises(RankmemError, match="no rank 7"):
        queries.fit(rank=7)


def test_a_recording_with_gaps_is_no_more_than_suspected_and_says_so(stored: Store) -> None:
    answer = stored(sized_steps([2, 2, 4, 4]), gap=True).fit(batch=["2x"])
    assert (answer.complete, answer.certainty) == (False, "suspected")
    assert answer.missing


@pytest.mark.parametrize(
    ("recorded", "batch", "words"),
    [
        ([2], ["2x"], "--recorded has 2"),
        ([2, 16], ["2x"], "--recorded has 2 and 16, but the inputs"),
        ([4, 2], ["2x"], "--recorded has 4, 2"),
        ([2, 4], ["-1"], "'-1' is no size"),
        ([2, 4], ["1.5"], "'1.5' is no size"),
    ],
)
def test_sizes_that_are_none_are_errors(
    recorded: Sequence[int], batch: Sequence[str], words: str, stored: Store
) -> None:
    with pytest.raises(RankmemError, match=words):
        stored(sized_steps([2, 2, 4, 4])).fit(batch=batch, recorded=recorded)


def longest(first: str, second: str) -> int:
    """The length of a longest common subsequence, the slow way."""
    rows = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, one in enumerate(first):
        for j, other in enumerate(second):
            rows[i + 1][j + 1] = rows[i][j] + 1 if one == other else max(rows[i][j + 1], rows[i + 1][j])
    return rows[-1][-1]


@given(first=st.text("abc", max_size=12), second=st.text("abc", max_size=12))
def test_as_many_are_paired_as_can_be(first: str, second: str) -> None:
    pairs = aligned(first, second)
    assert len(pairs) == longest(first, second)
    assert all(first[one] == second[other] for one, other in pairs)
    assert pairs == sorted(pairs)
    assert len({one for one, _ in pairs}) == len({other for _, other in pairs}) == len(pairs)


def test_one_that_is_missing_does_not_shift_those_after_it() -> None:
    first = [("mm", k % 3) for k in range(300)]
    second = first[:100] + first[101:]
    pairs = aligned(first, second)
    assert len(pairs) == 299
    assert pairs[-1] == (299, 298)


def test_within_a_run_of_one_name_the_sizes_tell_which_blocks_are_the_same() -> None:
    # A convolution's backward at batch 8 and 16 (oneDNN, one thread): at 16 it lays its arguments out anew.
    sizes = [5, 3145728, 128, 12288, 5], [5, 2097152, 12288, 6291456, 6291456, 12288, 128, 128, 12288, 5]
    names = ["mm", *["conv"] * 3, "mm"], ["mm", *["conv"] * 8, "mm"]

    def are_like(ones: range, twos: range) -> np.ndarray:
        return np.isin(
            np.divide.outer([sizes[1][two] for two in twos], [sizes[0][one] for one in ones]).T, [1, 2]
        )

    pairs = paired_within_runs(*names, aligned(*names), are_like)
    assert [(sizes[0][one], sizes[1][two]) for one, two in pairs] == [
        (5, 5), (3145728, 6291456), (128, 128), (12288, 12288), (5, 5)
    ]  # fmt: skip
    assert pairs[-2:] == [(3, 8), (4, 9)]


def test_within_a_run_blocks_that_grow_just_as_the_batch_come_before_others() -> None:
    """Beside a gradient of twice the bytes there is a copy with padded channels, of four times the bytes."""
    sizes = np.array([100.0, 48.0]), np.array([200.0, 400.0, 48.0, 400.0])
    names = ["conv"] * 2, ["conv"] * 4

    def are_like(ones: range, twos: range) -> np.ndarray:
        return likeness(sizes[1][None, twos], sizes[0][ones, None], 16, 8)

    assert paired_within_runs(*names, aligned(*names), are_like) == [(0, 0), (1, 2)]


def test_only_so_many_pairs_are_tried_in_all_runs_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(align, "CELLS_MAX", 3)
    names = ["a", "b", "a"], ["a"] * 2 + ["b"] + ["a"] * 2
    pairs = [(0, 0), (1, 2), (2, 3)]
    found = paired_within_runs(*names, pairs, lambda ones, twos: np.ones((len(ones), len(twos)), bool))
    assert found == [(0, 1), (1, 2), (2, 3)]


@given(first=st.text("ab", max_size=9), second=st.text("ab", max_size=9))
def test_where_all_may_be_the_same_as_many_are_paired_as_before(first: str, second: str) -> None:
    pairs = aligned(first, second)
    found = paired_within_runs(first, second, pairs, lambda ones, twos: np.ones((len(ones), len(twos)), bool))
    assert len(found) == len(pairs)
    assert all(first[one] == second[other] for one, other in found)
    assert found == sorted(found)
    assert len({one for one, _ in found}) == len({other for _, other in found}) == len(found)


def test_programs_that_differ_much_are_given_up() -> None:
    rng = random.Random(3)
    first, second = ([rng.random() for _ in range(500)] for _ in range(2))
    assert aligned([0.0, *first], [0.0, *second], changes_max=50) == [(0, 0)]


@given(
    lives=st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 15), st.integers(0, 9)).map(
            lambda each: (each[0], NEVER if each[1] > 13 else each[0] + each[1], each[2])
        ),
        max_size=20,
    )
)
def test_the_peak_is_that_of_a_plain_sum_at_each_instant(lives: list[tuple[int, int, int]]) -> None:
    table = np.array(lives, np.int64).reshape(-1, 3)
    sums = [sum(size for born, died, size in lives if born <= at < died) for at in range(40)]
    highest, at = peak_of(table[:, 0], table[:, 1], table[:, 2])
    assert highest == max(sums, default=0)
    assert not lives or sums[int(at)] == highest


@pytest.mark.parametrize(
    ("fail_on", "code", "output"),
    [(None, 0, "json"), ("predicted", 1, "table"), ("exact", 0, "csv")],
)
def test_the_verb_exits_by_its_verdict(
    stored: Store, database: Path, fail_on: str | None, code: int, output: str
) -> None:
    stored(sized_steps([2, 2, 4, 4])).close()
    arguments = ["fit", "--db", str(database), "--batch", "16", "--recorded", "2,4", "--in", "60MiB"]
    done = CliRunner().invoke(
        app, [*arguments, "--format", output, *(["--fail-on", fail_on] if fail_on else [])]
    )
    assert done.exit_code == code, done.output
    if output == "json":
        document = json.loads(done.stdout)
        assert faults(schema_of("fit"), document) == []
        assert {tuple(row) for row in document["rows"]} == {tuple(SCHEMA.names)}
    elif output == "csv":
        assert done.stdout.splitlines()[0] == ",".join(SCHEMA.names)
    else:
        lines = done.stdout.splitlines()
        assert lines[0].startswith("batch 16 holds ")
        assert "it does not fit in 60.00 MiB" in lines[0]
        assert lines[-1] == f"next: rankmem whatif --db {database} --rank 0"


def test_the_verb_takes_other_recordings_by_file_and_by_session(
    stored: Store, database: Path, tmp_path: Path
) -> None:
    stored(sized_steps([2, 2]), sized_steps([4, 4], session_id=OTHER)).close()
    path = tmp_path / "other.duckdb"
    with empty_database(str(path)) as connection:
        store_logs(connection, [sized_steps([8, 8])])
    arguments = ["fit", "--db", str(database), "--session", "0SESSION0001", "--batch", "16"]
    more = ["--with", OTHER, "--with", str(path), "--recorded", "2,4,8", "--format", "json"]
    done = CliRunner().invoke(app, arguments + more)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["figures"]["num_sizes"] == 3
    done = CliRunner().invoke(app, [*arguments, "--recorded", "two"])
    assert done.exit_code == 1
    assert "no list of whole numbers" in str(done.exception)
