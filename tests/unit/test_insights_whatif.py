"""What would help: remedies on a training made by hand, whose peaks are added up on paper."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from typer.testing import CliRunner

from constructed import RankLog, clear, empty_database, store_logs, store_rows
from json_schema import faults
from rankmem_aggregator.insights import whatif
from rankmem_aggregator.insights.already_sharded import Already, Sharded
from rankmem_aggregator.insights.chunks import loss_in_chunks
from rankmem_aggregator.insights.edits import Step, families_of, scratch_of
from rankmem_aggregator.insights.json_schemas import schema_of
from rankmem_aggregator.insights.parts import accumulated
from rankmem_aggregator.insights.whatif import (
    SCHEMA,
    TOGETHER_MAX,
    Remedy,
    Request,
    remedies_of,
    smallest_set,
    state_bits,
    whatif_of,
)
from rankmem_aggregator.insights.windows import NEVER, higher_step, place_of, read_window, step_sizes
from rankmem_aggregator.query import open as opening
from rankmem_aggregator.query.queries import Queries
from rankmem_cli.main import app
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import RankmemError
from remedied_steps import MIB, given_inputs, remedied_steps

pytestmark = pytest.mark.slow

Store = Callable[..., Queries]
PEAK = 81
"""Of a step: parameters and state 33, four layers of 9, logits 6 and what the loss keeps of them 6."""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whatif") / "job.duckdb"
    empty_database(str(path)).close()
    return path


@pytest.fixture
def stored(database: Path) -> Any:
    opened: list[Queries] = []

    def store(
        *logs: RankLog,
        gap: bool = False,
        world_size: int | None = None,
        shape: str = "[8, 16]",
        dtype: str | None = "float32",
    ) -> Queries:
        for queries in opened:
            queries.close()
        with duckdb.connect(str(database)) as connection:
            clear(connection)
            store_logs(connection, logs)
            if gap:
                hole = {"sequence_first": 4, "sequence_last": 5, "records": 2, "why": "lost"}
                place = {"session_id": logs[0].session_id, "attempt": 0, "rank": 0}
                store_rows(connection, "gap", [hole | place])
            if world_size:
                connection.execute("UPDATE session SET world_size = ?", [world_size])
            whose = {"session_id": logs[0].session_id, "attempt": 0, "rank": 0}
            sizes = {f"layers.{layer}.weight": 2 for layer in range(4)} | {"head.weight": 3}
            store_rows(
                connection,
                "weight",
                [
                    whose
                    | {"name": name, "size_bytes": mib * MIB, "grad_size_bytes": mib * MIB}
                    | {"dtype": dtype, "shape": dtype and str([mib * MIB // 8, 2])}
                    for name, mib in sizes.items()
                ],
            )
            for log in logs:
                store_rows(connection, "step_input", given_inputs(log, shape) if shape else [])
        opened.append(opening.open_queries(database, Credentials()))
        return opened[-1]

    yield store
    for queries in opened:
        queries.close()


def step_of(queries: Queries) -> Step:
    """The last step."""
    place = place_of(queries._ask, queries.session_id(), rank=None)
    return Step.of_window(read_window(queries._ask, place, step_sizes(queries._ask, place)[-1]))


def after(queries: Queries, **question: Any) -> dict[str, float]:
    """The peak with each remedy, in MiB."""
    rows = queries.whatif(**question).rows.to_pylist()
    assert len({row["saved_bytes"] + row["peak_after_bytes"] for row in rows}) == 1
    return {row["remedy"]: row["peak_after_bytes"] / MIB for row in rows}


def test_each_remedy_moves_the_peak_to_where_paper_says(stored: Store) -> None:
    found = after(stored(remedied_steps()))
    assert found == {
        # Backward of the first layer: 33, its output 1, gradients 3 + 6 + 2, its inner block again 8.
        "checkpoint": 53,
        # Logits, the loss's and their gradient an eighth of 6, and the head's gradient 3 three times, two of
        # which are added up when a chunk's logits are gone: 33 + 36 + 9.
        "chunks": 33 + 36 + 9,
        # Gradients 11 that stay, half of 36 + 12.
        "accumulate": 33 + 11 + 24,
        # The state is 22.
        "zero1": PEAK - 22 * 7 / 8,
        "zero2": PEAK - 22 * 7 / 8,
        # At most: parameters 11, gradients 11, state, and in the optimizer's step seven of the head's 6.
        "state16": 11 + 11 + 11 + 42,
        "state8": 11 + 11 + 22 / 4 * (1 + 4 / 64) + 42,
        "offload": 11 + 11 + 42,
        # Parameters and state an eighth of 33; layers 36, the loss's gradient 6; of the root 3 gathered, 3 of
        # gradient and 3 to be sent; of the next unit 2 gathered.
        "fsdp": 33 / 8 + 36 + 6 + 9 + 2,
        "foreach": PEAK,
        "set-to-none": PEAK,
        "let-go": PEAK,
        "bucket-view": PEAK,
    }


def test_what_is_not_held_against_a_training_is_marked_and_suspected(stored: Store) -> None:
    answer = stored(remedied_steps()).whatif()
    marked = {row["remedy"] for row in answer.rows.to_pylist() if not row["is_measured"]}
    assert marked == {"zero2"}
    assert (answer.verdict, answer.certainty) == ("finding", "predicted")
    saved = "checkpoint layers.0 … layers.3 saves 28.00 MiB of the peak of a step on rank 0, cpu"
    assert answer.sentence == f"{saved}: 53.00 MiB instead of 81.00 MiB"
    assert answer.figures["peak_phase"] == "forward"
    assert any("nothing is saved here by" in note and "foreach" in note for note in answer.notes)


def test_state_in_fewer_bits_or_on_the_host_is_told_from_least_to_most(stored: Store) -> None:
    """At least the optimizer makes nothing, so that the peak stays in forward."""
    queries = stored(remedied_steps())
    answer = queries.whatif(fit_bytes=60 * MIB)
    rows = {row["remedy"]: row for row in answer.rows.to_pylist()}
    least = {name: rows[name]["peak_after_least_bytes"] / MIB for name in ("state16", "state8", "offload")}
    assert least == {"state16": PEAK - 11, "state8": PEAK - 16.5, "offload": PEAK - 22}
    assert [rows[name]["fits"] for name in least] == [False, False, None]
    assert {rows[name]["phase_after"] for name in least} == {"optimizer"}
    assert any("the range of offload, state8, state16 depends on how" in note for note in answer.notes)
    assert "range" not in answer.error, "that of the first remedy is known"


@pytest.mark.parametrize(
    ("name", "certainty"), [("state16", "predicted"), ("offload", "predicted"), ("state8", "suspected")]
)
def test_how_far_state_in_fewer_bits_was_off_is_told(
    name: str, certainty: str, stored: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whatif, "remedies_of", lambda *given: [_named(name, *given)])
    queries = stored(remedied_steps())
    for fit_bytes in (None, 75 * MIB):
        answer = queries.whatif(fit_bytes=fit_bytes)
        assert answer.figures["smallest_set"] == (fit_bytes and [name])
        assert answer.certainty == certainty
        assert answer.error.startswith("between least and most in 17 trainings")
        beyond = "without its compiler held up to 65 % more"
        assert [beyond in answer.error, any(beyond in note for note in answer.notes)] == [
            name == "state8"
        ] * 2
        assert "1 %" not in answer.error


def _named(name: str, *given: Any) -> Remedy:
    return next(each for each in remedies_of(*given) if each.name == name)


def test_state_that_has_16_bits_cannot_be_halved(stored: Store) -> None:
    step = step_of(stored(remedied_steps()))
    for dtype, size, bits in (("bfloat16", 4, 16), ("float16", 2, 32), ("float32", 4, 32), (None, 4, 32)):
        unknown = {"dtype": dtype, "size_bytes": None}
        assert state_bits(step, [{"dtype": dtype, "size_bytes": size * MIB}, unknown]) == bits
    found = {each.name: each for each in remedies_of(step, {}, 8, bits=16)}
    lives = step.lives()
    assert found["state16"].edit(step, lives).is_as(lives)
    assert found["state8"].least is not None
    assert found["state8"].least(step, lives).peak()[0] == (PEAK - 11) * MIB


def test_what_is_sharded_already_is_not_sharded_again(stored: Store) -> None:
    step = step_of(stored(remedied_steps()))
    weights = {f"layers.{layer}.weight": 2 * MIB for layer in range(4)} | {"head.weight": 3 * MIB}
    lives = step.lives()

    def peaks(surely: Sharded, maybe: Sharded) -> dict[str, tuple[float, float]]:
        """With each remedy, at least and at most."""
        has = Already(surely=surely, maybe=maybe)
        found = {}
        for each in remedies_of(step, weights, 2, has=has):
            if each.name in ("zero1", "zero2", "fsdp"):
                both = [edit(step, lives).peak()[0] / MIB for edit in (each.least or each.edit, each.edit)]
                found[each.name] = min(both), both[1]
        return found

    none, state = peaks("nothing", "nothing"), peaks("state", "state")
    assert none["zero1"] == none["zero2"] == (PEAK - 11, PEAK - 11)
    assert state["zero1"] == state["zero2"] == (PEAK, PEAK)
    assert state["fsdp"] == (none["fsdp"][0] + 11, none["fsdp"][0] + 11)
    assert set(peaks("parameters", "parameters").values()) == {(PEAK, PEAK)}
    may_be_state = peaks("nothing", "state")
    assert may_be_state["zero1"] == may_be_state["zero2"] == (PEAK - 11, PEAK)
    assert may_be_state["fsdp"] == (none["fsdp"][0], state["fsdp"][0])
    assert peaks("nothing", "parameters")["fsdp"] == (none["fsdp"][0], PEAK)


def test_parameters_that_stay_whole_between_steps_are_gone_at_the_best(stored: Store) -> None:
    """The optimizer's step lets go of them, and they are gathered again before it ends."""
    step = step_of(stored(remedied_steps()))
    weights = {"head.weight": 3 * MIB}
    has = Already(surely="gradients", maybe="parameters")
    (fsdp,) = [each for each in remedies_of(step, weights, 2, has=has) if each.name == "fsdp"]
    assert fsdp.least is not None
    assert (fsdp.is_measured, "if not done already" in fsdp.what) == (False, True)
    plain, own = step.lives(), int(np.flatnonzero(step.category == "parameter")[0])
    begin, at, end = step.window.begin, plain.peak()[1], step.window.end
    kept = plain.and_one(begin, at + 0.5, 9 * MIB, own).and_one(end - 0.5, NEVER, 9 * MIB, own)
    assert kept.peak()[0] == (PEAK + 9) * MIB
    assert fsdp.edit(step, kept).peak()[0] == (PEAK + 9) * MIB
    assert fsdp.least(step, kept).is_as(fsdp.least(step, plain))
    assert has.known == "gradients"


def test_copies_that_an_optimizer_steps_on_are_sharded_with_its_state(stored: Store) -> None:
    """Half of the 11 of parameters is none of the model's."""
    step = step_of(stored(remedied_steps()))
    lives, weights = step.lives(), {"head.weight": 11 * MIB // 2}

    def held(has: Sharded) -> float:
        edits = {each.name: each for each in remedies_of(step, weights, 2, has=Already.just(has))}
        after = edits["fsdp"].edit(step, lives)
        return float(after.bytes[step.category[after.of] == "parameter"][:5].sum() / MIB)

    assert held("nothing") == 5.5
    assert held("state") == 5.5 + 2.75


def test_sharding_that_may_take_more_than_it_saves_is_told_at_its_most(stored: Store) -> None:
    """Where parameters are but a little, and gathered while the peak is."""
    step = step_of(stored(remedied_steps()))
    weights = {"head.weight": 40 * MIB}
    has = Already(surely="nothing", maybe="parameters")
    (fsdp,) = [each for each in remedies_of(step, weights, 2, has=has) if each.name == "fsdp"]
    assert fsdp.edit(step, step.lives()).peak()[0] > PEAK * MIB


def test_a_step_that_held_more_than_the_one_that_is_looked_at_is_named(stored: Store) -> None:
    log = remedied_steps()
    queries = stored(log)
    assert queries.whatif().figures["higher_step"] is None
    place = place_of(queries._ask, queries.session_id(), rank=None)
    sizes = step_sizes(queries._ask, place)
    higher = [sizes[0], replace(sizes[1], peak_bytes=100 * MIB), sizes[2]]
    assert higher_step(higher, sizes[2].step, PEAK * MIB) == (sizes[1].step, 100 * MIB)
    assert higher_step(higher, sizes[2].step, 100 * MIB) is None
    # What the start alone held is none.
    assert (
        higher_step([replace(sizes[0], peak_bytes=100 * MIB), *sizes[1:]], sizes[2].step, PEAK * MIB) is None
    )


@pytest.mark.parametrize(
    ("held", "fit", "verdict", "words"),
    [
        (100, 90, "finding", "step 1 held 100.00 MiB on rank 0, cpu, which does not fit in 90.00 MiB"),
        (81.5, 81, "finding", "step 1 held 81.50 MiB on rank 0, cpu, which does not fit in 81.00 MiB"),
        (
            100,
            400,
            "fine",
            "the peak of a step on rank 0, cpu is 81.00 MiB, which fits in 400.00 MiB as it is",
        ),
        (100, 76, "finding", "instead of 81.00 MiB; but step 1 held 100.00 MiB, and these figures do not"),
    ],
)
def test_what_fits_is_what_the_highest_step_fits_in(
    held: float, fit: int, verdict: str, words: str, stored: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_higher(*given: Any) -> Any:
        first, second, *rest = step_sizes(*given)
        return [first, replace(second, peak_bytes=int(held * MIB)), *rest, *rest]  # the usual one twice

    monkeypatch.setattr(whatif, "step_sizes", with_higher)
    answer = stored(remedied_steps()).whatif(fit_bytes=fit * MIB)
    assert (answer.verdict, answer.figures["fits_as_it_is"]) == (verdict, verdict == "fine")
    assert words in answer.sentence
    assert ("step 1" in answer.sentence) == (verdict == "finding")
    assert any("these figures do not cover it" in note for note in answer.notes)


@pytest.mark.parametrize("is_copied", [True, False])
def test_a_buffer_of_gradients_goes_with_sharding_only_where_backward_makes_them_beside_it(
    is_copied: bool, stored: Store
) -> None:
    peaks = []
    for bucket_mib in (0, 11):
        log = remedied_steps(bucket_mib=bucket_mib)
        for row in log.allocations.values():
            if not is_copied and row["category"] == "gradient" and row["phase"] == "backward":
                row["category"] = "temporary"
        peaks.append(after(stored(log)))
    without, with_bucket = peaks
    assert with_bucket["zero1"] == without["zero1"] + 11
    stays = 0 if is_copied else 11 / 8
    assert with_bucket["zero2"] == without["zero2"] + stays
    assert with_bucket["fsdp"] == without["fsdp"] + stays


@pytest.mark.parametrize(
    ("classes", "saves"),
    [([], True), (["DistributedDataParallel", "Net"], True), (["DeepSpeedEngine", "Net"], False)],
)
def test_gradients_are_in_buckets_where_a_module_is_ddp_s(
    classes: list[str], saves: bool, stored: Store, database: Path
) -> None:
    log = remedied_steps(bucket_mib=11, lets_go_late=True)
    stored(log, world_size=2).close()
    with duckdb.connect(str(database)) as connection:
        whose = {"session_id": log.session_id, "attempt": 0, "rank": 0}
        store_rows(connection, "module", [whose | {"module": each, "class": each} for each in classes])
    with opening.open_queries(database, Credentials()) as queries:
        assert (after(queries)["bucket-view"] < after(queries)["set-to-none"]) == saves


@pytest.mark.parametrize(
    ("optimizers", "most"),
    [({"Rprop"}, 9), ({"SGD", "AdamW"}, 9), ({"LBFGS"}, 12), ({"Muon", "AdamW"}, 12), ((), 12)],
)
def test_what_other_optimizers_make_for_one_parameter_is_told_from_nothing_to_thrice(
    optimizers: Iterable[str], most: int, stored: Store
) -> None:
    """Of the largest, 3; of Adam twice. 12 are made at once, and stay where there may be no foreach."""
    step = step_of(stored(remedied_steps(scratch_mib=12)))
    (known,) = (each for each in remedies_of(step, {}, 8) if each.name == "foreach")
    (other,) = (
        each for each in remedies_of(step, {}, 8, optimizers=set(optimizers)) if each.name == "foreach"
    )
    assert known.least is None
    assert other.least is not None
    after = [edit(step, step.lives()) for edit in (known.edit, other.least, other.edit)]
    assert [lives.kept(scratch_of(step, lives)).peak()[0] / MIB for lives in after] == [6, 0, most]


def test_without_state_there_is_none_to_make_smaller(stored: Store) -> None:
    log = remedied_steps()
    for row in log.allocations.values():
        if row["category"] == "optimizer_state":
            row["category"] = "temporary"
    rows = {row["remedy"]: row for row in stored(log).whatif().rows.to_pylist()}
    for name in ("state16", "state8", "offload"):
        assert rows[name]["saved_bytes"] == 0
        assert rows[name]["peak_after_least_bytes"] == rows[name]["peak_after_bytes"]


@pytest.mark.parametrize("shape", ["[8, 16]", "[5, 1024, 1024]", ""])
def test_a_result_that_is_kept_till_the_next_is_let_go_of_unless_it_may_be_an_input(
    shape: str, stored: Store
) -> None:
    """The step's own result comes after the logits are gone: 33 + 36 + 6 + twice 20."""
    answer = stored(remedied_steps(keeps_result=True), shape=shape).whatif()
    (row,) = [row for row in answer.rows.to_pylist() if row["remedy"] == "let-go"]
    assert answer.figures["peak_bytes"] == 115 * MIB
    assert row["peak_after_least_bytes"] == 101 * MIB
    assert row["peak_after_bytes"] == (101 if shape == "[8, 16]" else 115) * MIB


def test_what_may_still_be_used_is_not_sure_to_be_left_over(stored: Store) -> None:
    """It is made at the end of the step before, as a batch that is loaded ahead."""
    answer = stored(remedied_steps(late=True)).whatif()
    rows = {row["remedy"]: row for row in answer.rows.to_pylist()}
    assert rows["let-go"]["peak_after_bytes"] == answer.figures["peak_bytes"] == (PEAK + 20) * MIB
    assert rows["let-go"]["peak_after_least_bytes"] == PEAK * MIB
    assert any("let-go depends on whether this step still uses" in note for note in answer.notes)
    # Without it the checkpoint's peak is where the loss is: 33 + 4 + 12 + 20.
    assert rows["checkpoint"]["peak_after_bytes"] == 69 * MIB


def bounds(queries: Queries, remedy: str) -> tuple[float, float]:
    """The least and the most with a remedy, in MiB."""
    (row,) = [row for row in queries.whatif().rows.to_pylist() if row["remedy"] == remedy]
    return row["peak_after_least_bytes"] / MIB, row["peak_after_bytes"] / MIB


@pytest.mark.parametrize(("copies", "mib"), [("whole", 8), ("half", 4)])
def test_copies_of_weights_do_not_shrink_with_the_batch(copies: str, mib: int, stored: Store) -> None:
    """State and weights 33, gradients 11, half of what layers and the loss keep, and the copies."""
    queries = stored(remedied_steps(copies_weights=copies, out_mib=(3, 3, 3, 3)))
    assert bounds(queries, "accumulate") == (33 + 11 + 28 + mib / 2, 33 + 11 + 28 + mib)
    assert "accumulate depends on whether blocks as large as a weight" in "".join(queries.whatif().notes)


def test_what_is_frozen_may_be_copied_too(stored: Store) -> None:
    log = remedied_steps(copies_weights="whole", out_mib=(3, 3, 3, 3))
    for name, row in log.allocations.items():
        if name.startswith("g layers."):
            row["category"] = "autograd_detail"
    _, most = bounds(stored(log), "accumulate")
    step = step_of(stored(log))
    made = step.inside & (step.operator == "aten::linear") & (step.window.bytes == 2 * MIB)
    assert step.copies[made].all()
    assert most == 33 + 3 + 28 + 8


def test_autocast_keeps_its_casts_of_checkpointed_weights_till_backward_begins(stored: Store) -> None:
    """Outputs 12 and the loss's 12, and the casts 4 at most; else backward of the last layer is the peak:
    outputs 12, its inner block 8, its cast 1, gradients 3 + 2.
    """
    queries = stored(remedied_steps(copies_weights="half", out_mib=(3, 3, 3, 3)))
    assert bounds(queries, "checkpoint") == (59, 61)


def test_what_others_hold_of_a_checkpointed_module_stays(stored: Store) -> None:
    """Backward of the first layer: its output 1, inner block 8, gradients 11, what is held of all four 12;
    its own 3 may come again.
    """
    assert bounds(stored(remedied_steps(holds_mib=3)), "checkpoint") == (33 + 32, 33 + 35)


def test_what_a_checkpointed_module_may_return_beside_its_output_stays_at_the_most(stored: Store) -> None:
    """Backward of the last layer: 33, outputs 4, the head's gradient 3, gradients of what was returned 33;
    its inner block 8 again, its own gradient 2 and that of its input 1, or all inner blocks 32 and a brief
    one.
    """
    found = bounds(stored(remedied_steps(returns_inner=True)), "checkpoint")
    assert found == (33 + 4 + 3 + 33 + 8 + 3, 33 + 4 + 3 + 33 + 8 + 32 + 0.5)


def test_the_loss_of_each_part_is_in_chunks(stored: Store) -> None:
    """In the second part: layers 36, gradients 11, three times the head's 3."""
    queries = stored(remedied_steps(parts=2))
    assert bounds(queries, "chunks") == (33 + 36 + 11 + 9,) * 2
    step = step_of(queries)
    lives = loss_in_chunks(8)(step, step.lives())
    logits = step.inside[lives.of] & np.array([step.module[of] == "head" for of in lives.of])
    assert set(lives.bytes[logits & (step.phase[lives.of] == "forward")]) == {0.75 * MIB}
    assert len(lives.of) == len(step.window) + 4, "each part has the head's gradient once more, and a sum"


@pytest.mark.parametrize("parts", [1, 2])
def test_what_a_tied_head_gives_is_a_part_of_a_gradient(parts: int, stored: Store) -> None:
    """Layers 36, three times the head's 3, in the second part gradients 11."""
    queries = stored(remedied_steps(parts=parts, is_tied=True))
    assert bounds(queries, "chunks") == (33 + 36 + 9 + 11 * (parts - 1),) * 2


@pytest.mark.parametrize("is_tied", [False, True])
def test_what_the_head_gives_on_is_no_part_of_its_gradient(is_tied: bool, stored: Store) -> None:
    """Though it is made first, and as large as a layer's weight, 2."""
    step = step_of(stored(remedied_steps(is_tied=is_tied, lays_out_anew=True)))
    of_head = np.array([module == "head" for module in step.module])
    given_on = of_head & step.in_backward & (step.category == "temporary")
    window = replace(step.window, bytes=np.where(given_on, 2 * MIB, step.window.bytes))
    step = replace(step, window=window)
    lives = loss_in_chunks(8)(step, step.lives())
    more = lives.bytes[len(step.window) :] / MIB
    assert more.tolist() == [3, 6]


def test_a_gradient_of_the_head_that_autocast_casts_in_the_end_is_added_up_in_16_bits(stored: Store) -> None:
    step = step_of(stored(remedied_steps(copies_weights="half", lays_out_anew=True)))
    halves = step.in_backward & (step.category == "temporary")
    window = replace(step.window, bytes=np.where(halves, step.window.bytes // 2, step.window.bytes))
    step = replace(step, window=window)
    more = loss_in_chunks(8)(step, step.lives()).bytes[len(step.window) :] / MIB
    assert more.tolist() == [1.5, 4.5]


def test_what_backward_makes_for_the_line_of_a_loss_is_in_chunks_too(stored: Store) -> None:
    """The sum of the gradients of a loss's terms, as of smoothed labels; not what the layers make."""
    step = step_of(stored(remedied_steps()))
    terms = step.operator == "aten::_log_softmax_backward_data"
    losses = step.operator == "aten::cross_entropy_loss"
    step = replace(step, operator=np.where(terms, "aten::add", step.operator))

    def peak(line: str) -> float:
        lines = {"line": ["net.py:9" if loss else None for loss in losses]}
        lines["forward_line"] = [line if term else None for term in terms]
        on_lines = replace(step, window=replace(step.window, **lines))
        return loss_in_chunks(8)(on_lines, on_lines.lives()).peak()[0]

    assert peak("net.py:9") == (33 + 36 + 9) * MIB
    assert peak("net.py:8") > peak("net.py:9")


def test_a_line_of_a_loss_that_calls_the_model_has_no_chunks_of_its_layers(stored: Store) -> None:
    """As in ``loss = cross_entropy(model(x), y)``, where a layer's gradient is as large as the logits."""
    step = step_of(stored(remedied_steps(lays_out_anew=True)))
    layouts = step.in_backward & (step.category == "temporary")
    on_line = {name: ["net.py:9"] * len(step.window) for name in ("line", "forward_line")}
    step = replace(
        step,
        operator=np.where(layouts, "aten::gelu_backward", step.operator),
        window=replace(step.window, **on_line),
    )
    lives = loss_in_chunks(8)(step, step.lives())
    assert sorted(set(lives.bytes[: len(step.window)][layouts])) == [2 * MIB, 3 * MIB]


def test_what_a_module_before_has_let_go_of_is_not_the_input_of_a_checkpoint(stored: Store) -> None:
    """The last output is as large as an inner block of the layer before, which is gone by then: of backward
    of the last layer 33, outputs 13, its inner block 8 again, gradients 3 + 2.
    """
    assert after(stored(remedied_steps(out_mib=(1, 1, 3, 8))))["checkpoint"] == 59


def test_gradients_that_a_step_adds_up_itself_stay_as_they_are(stored: Store) -> None:
    edited = {}
    for parts in (1, 2):
        queries = stored(remedied_steps(parts=parts))
        step = step_of(queries)
        lives = accumulated(2)(step, step.lives())
        gradients = step.category[lives.of] == "gradient"
        pieces = step.in_backward[lives.of] & (step.operator[lives.of] == "aten::mm")
        edited[parts] = int(gradients.sum()), int(lives.bytes[pieces].sum()) // MIB
        assert after(queries)["accumulate"] == 33 + 11 + 24
    # Of a step that does not, each comes with the first half and again with the second: 11 twice.
    assert edited == {1: (10, 22), 2: (5, 22)}


def test_what_comes_and_goes_within_one_backward_is_no_gradient_made_again(stored: Store) -> None:
    for kept in ({}, {"lets_go_late": True}):
        assert after(stored(remedied_steps(lays_out_anew=True, **kept)))["accumulate"] == 33 + 11 + 24
    queries = stored(remedied_steps(lays_out_anew=True, parts=2))
    step = step_of(queries)
    lives = accumulated(2)(step, step.lives())
    assert int((step.category[lives.of] == "gradient").sum()) == 5, "the step still adds its gradients up"


def test_what_depends_on_when_a_checkpoint_lets_go_is_told_from_least_to_most(stored: Store) -> None:
    """In the last layer's forward: 33, gradients 11, three outputs, its own 1, and its inner block of 14:
    with the brief one after it, or gone before the output comes.
    """
    queries = stored(remedied_steps(lets_go_late=True, inner_mib=14))
    rows = {row["remedy"]: row for row in queries.whatif(fit_bytes=62 * MIB).rows.to_pylist()}
    row = rows["checkpoint"]
    assert (row["peak_after_least_bytes"], row["peak_after_bytes"]) == (61 * MIB, 62.5 * MIB)
    assert row["fits"] is None
    assert rows["zero1"]["fits"] is False
    alone = queries.whatif()
    assert alone.sentence == (
        "checkpoint layers.0 … layers.3 saves at least 53.50 MiB of the peak of a step on rank 0, cpu: "
        "61.00 MiB to 62.50 MiB instead of 116.00 MiB"
    )
    assert "depends on when a checkpoint lets go of a block within its forward" in alone.error


def test_gradients_that_stay_are_let_go_of_between_steps(stored: Store) -> None:
    queries = stored(remedied_steps(keeps_gradients=True))
    found = after(queries)
    assert queries.whatif().figures["peak_bytes"] == (PEAK + 11) * MIB
    assert found["set-to-none"] == PEAK


@pytest.mark.parametrize("others_go", [False, True])
def test_gradients_that_stay_where_others_go_are_of_parameters_that_nothing_clears(
    others_go: bool, stored: Store
) -> None:
    """As of a part of the model that no optimizer has: set_to_none is in use, and does not reach them."""
    log = remedied_steps(keeps_gradients=not others_go, lets_go_late=others_go, bucket_mib=4)
    for row in log.allocations.values():
        row["phase"] = "backward" if row["category"] == "gradient" else row["phase"]
    (row,) = [each for each in stored(log).whatif().rows.to_pylist() if each["remedy"] == "set-to-none"]
    assert row["saved_bytes"] > 0
    clears = "zero_grad(set_to_none=True) also for the parameters whose gradients stay"
    assert row["what"] == (clears if others_go else "zero_grad(set_to_none=True)")


@pytest.mark.parametrize("kept", ["keeps_gradients", "lets_go_late"])
def test_gradients_of_the_step_before_do_not_add_to_those_of_the_first_part(kept: str, stored: Store) -> None:
    queries = stored(remedied_steps(**{kept: True}))
    assert queries.whatif().figures["peak_bytes"] == (PEAK + 11) * MIB
    assert after(queries)["accumulate"] == 33 + 11 + 24


@pytest.mark.parametrize("more", [{"late": True}, {"keeps_gradients": True}, {"steps": 2}])
def test_the_smallest_set_is_the_first_of_all_by_size_and_cost(more: dict[str, Any], stored: Store) -> None:
    queries = stored(remedied_steps(**more))
    step = step_of(queries)
    remedies = [each for each in remedies_of(step, {}, 8) if each.is_measured][:TOGETHER_MAX]
    peaks = {
        tuple(each.name for each in chosen): _together(step, chosen)
        for count in range(1, len(remedies) + 1)
        for chosen in itertools.combinations(remedies, count)
        if len(rivals := [each.rivals for each in chosen if each.rivals]) == len(set(rivals))
    }
    before = step.lives().peak()[0]
    for usable in sorted({peak - less for peak in peaks.values() for less in (0, 1) if peak - less < before}):
        found = smallest_set(step, remedies, usable)
        expected = next((names for names, peak in peaks.items() if peak <= usable), None)
        assert (None if found is None else tuple(each.name for each in found[0])) == expected
        assert found is None or found[1].peak()[0] == peaks[expected]


def _together(step: Step, chosen: Any) -> float:
    lives = step.lives()
    for each in chosen:
        lives = each.edit(step, lives)
    return lives.peak()[0]


@pytest.mark.parametrize(
    ("mib", "verdict", "remedies", "words"),
    [
        (90, "fine", None, "fits in 90.00 MiB as it is"),
        (76, "finding", ["zero1"], "to fit in 76.00 MiB on rank 0, cpu: shard optimizer state over 8 ranks"),
        (40, "finding", ["zero1", "checkpoint"], "shard optimizer state over 8 ranks (ZeRO-1); checkpoint"),
        (5, "finding", None, "no set of measured remedies is sure to bring"),
    ],
)
def test_the_fewest_changes_that_fit_are_named(
    mib: int, verdict: str, remedies: list[str] | None, words: str, stored: Store
) -> None:
    answer = stored(remedied_steps()).whatif(fit_bytes=mib * MIB)
    assert (answer.verdict, answer.figures["smallest_set"]) == (verdict, remedies)
    assert words in answer.sentence
    assert all(row["fits"] == (row["peak_after_bytes"] <= mib * MIB) for row in answer.rows.to_pylist())


def test_over_how_many_ranks_is_sharded(stored: Store) -> None:
    queries = stored(remedied_steps(), world_size=2)
    assert after(queries)["zero1"] == PEAK - 11
    assert after(queries, ranks=22)["zero1"] == PEAK - 21
    with pytest.raises(RankmemError, match="over 1 rank"):
        queries.whatif(ranks=1)


def test_without_a_number_it_is_sharded_over_the_ranks_with_the_same_parameters(stored: Store) -> None:
    log = remedied_steps()
    log.coordinates = {"dp": 1, "tp": 3}
    assert after(stored(log, world_size=8))["zero1"] == PEAK - 11


def test_where_the_ranks_are_is_asked_once(stored: Store) -> None:
    queries, asked = stored(remedied_steps(), world_size=8), []

    def ask(name: str, **parameters: Any) -> Any:
        asked.append(name)
        return queries._ask(name, **parameters)

    whatif_of(ask, queries.session_id(), Request())
    assert (asked.count("rank_coordinates"), asked.count("steps")) == (1, 1)


def test_parameters_of_another_start_of_the_workers_are_not_those_of_this_one(stored: Store) -> None:
    answers = [stored(remedied_steps(attempt=attempt)).whatif() for attempt in (0, 1)]
    told = [any("the parameters of attempt 1 are not known by name" in n for n in a.notes) for a in answers]
    assert told == [False, True]
    assert ["fsdp" in a.rows["remedy"].to_pylist() for a in answers] == [True, False]


@pytest.mark.parametrize("world_size", [1, 8])
def test_where_nothing_is_sharded_sharding_is_predicted(world_size: int, stored: Store) -> None:
    answer = stored(remedied_steps(), world_size=world_size).whatif(fit_bytes=76 * MIB)
    assert answer.figures["smallest_set"] == ["zero1"]
    assert (answer.figures["sharded"], answer.certainty) == ("nothing", "predicted")


def test_where_it_may_be_done_already_sharding_is_sure_to_save_nothing(stored: Store) -> None:
    """Of parameters without element types nobody knows how many elements they have."""
    answer = stored(remedied_steps(), world_size=8, dtype=None).whatif(fit_bytes=79 * MIB)
    assert answer.figures["sharded"] is None
    assert answer.figures["smallest_set"] == ["chunks"]
    rows = {row["remedy"]: row for row in answer.rows.to_pylist()}
    for remedy in ("zero1", "zero2", "fsdp"):
        row = rows[remedy]
        assert (row["saved_bytes"], row["fits"]) == (0, None)
        assert row["peak_after_least_bytes"] < row["peak_after_bytes"]
        assert ", if not done already)" in row["what"]
    (note,) = [note for note in answer.notes if "zero1" in note]
    assert note.startswith("the range of ")
    assert {"zero1", "zero2", "fsdp"} <= set(note.replace(",", "").split())
    assert note.endswith("depends on what the ranks shard already, which this recording does not tell")


def test_siblings_are_found_by_their_numbers() -> None:
    paths = {
        "encoder.layers.0.norm",
        "encoder.layers.1",
        "encoder.layers.10.up",
        "head",
        None,
        "stem.0",
        "decoder.2",
    }
    assert families_of(paths) == [["encoder.layers.0", "encoder.layers.1", "encoder.layers.10"]]


def test_where_nothing_shows_what_is_of_forward_no_remedy_is_told(stored: Store) -> None:
    log = remedied_steps()
    for row in log.allocations.values():
        row["phase"] = row["category"] = row["module"] = None
    answer = stored(log).whatif()
    assert (answer.verdict, answer.exit_code(), answer.rows.num_rows) == ("cannot tell", 2, 0)
    assert "no block of rank 0, cpu is known to be of forward or backward" in answer.sentence


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (remedied_steps(0), "no steps of rank 0, cpu"),
        (remedied_steps(1), "one step of rank 0, cpu was recorded"),
    ],
)
def test_what_does_not_carry_an_answer_is_said(log: RankLog, words: str, stored: Store) -> None:
    answer = stored(log).whatif()
    assert (answer.verdict, answer.rows.num_rows) == ("cannot tell", 0)
    assert words in answer.sentence


def test_an_unfinished_run_a_gap_and_a_rank_that_is_not_there(stored: Store) -> None:
    log = remedied_steps()
    log.ended = None
    assert after(stored(log))["checkpoint"] == 53
    answer = stored(log, gap=True).whatif()
    assert (answer.complete, answer.certainty) == (False, "suspected")
    with pytest.raises(RankmemError, match="no rank 7"):
        stored(log).whatif(rank=7)


@pytest.mark.parametrize(
    ("fail_on", "code", "output"), [(None, 0, "json"), ("predicted", 1, "table"), ("exact", 0, "csv")]
)
def test_the_verb_exits_by_its_verdict(
    stored: Store, database: Path, fail_on: str | None, code: int, output: str
) -> None:
    stored(remedied_steps()).close()
    arguments = ["whatif", "--db", str(database), "--fit", "60MiB", "--format", output]
    done = CliRunner().invoke(app, arguments + (["--fail-on", fail_on] if fail_on else []))
    assert done.exit_code == code, done.output
    if output == "json":
        document = json.loads(done.stdout)
        assert faults(schema_of("whatif"), document) == []
        assert {tuple(row) for row in document["rows"]} == {tuple(SCHEMA.names)}
    elif output == "csv":
        assert done.stdout.splitlines()[0] == ",".join(SCHEMA.names)
    else:
        assert done.stdout.startswith("to fit in 60.00 MiB on rank 0, cpu: checkpoint layers.0 … layers.3;")
