"""What a job of several ranks has sharded already, by the blocks and bytes that its ranks hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rankmem_aggregator.insights.already_sharded import WHOLE, Already, already, coordinates_of, ends_of
from rankmem_aggregator.insights.whatif import replicas_of
from rankmem_aggregator.insights.windows import NEVER, Place, StepSize, Window

PLACE = Place(
    session_id="0", attempt=0, rank=0, device="cpu", device_type="cpu", allocator=None, settings=None,
    total_bytes=None,
)  # fmt: skip
STATE, PARAMETERS = Already.just("state"), Already.just("parameters")
GRADIENTS = Already(surely="gradients", maybe="parameters")
MAY_BE_STATE = Already(surely="nothing", maybe="state")
MAY_BE_GRADIENTS = Already(surely="nothing", maybe="gradients")
MAY_BE_ALL = Already(surely="nothing", maybe="parameters")
STATE_OR_GRADIENTS = Already(surely="state", maybe="gradients")

Weights = list[dict[str, Any]]


def weight(*shape: int, share: float = 1, bits: int = 32, grad: bool = True) -> dict[str, Any]:
    """A parameter.

    Args:
        share: of the shape that the rank has.
    """
    size = int(np.prod(shape) * share * bits) // 8
    dtype = {16: "bfloat16", 32: "float32", 64: "float64"}[bits]
    return {"size_bytes": size, "grad_size_bytes": size * grad, "dtype": dtype, "shape": str(list(shape))}


LINEAR, HEAD, BIAS = weight(10, 100), weight(30, 100), weight(200)
MODEL = [LINEAR, LINEAR, HEAD, BIAS]
"""4,000 bytes twice, 12,000 and 800: 20,800."""
SIZES = [4000, 4000, 12000, 800]
TABLE = weight(10, 100, share=0.5)
"""Half of it, by a DTensor."""


def window(
    parameters: Sequence[int] = SIZES,
    state: Sequence[int] = (),
    *,
    gathered: Sequence[int] = (),
    kept: Sequence[int] = (),
    forward: Sequence[int] = (),
    backward: Sequence[int] = (),
    runs: int = 1,
    checkpoints: bool = False,
) -> Window:
    """Step 3 of a training.

    Args:
        parameters, state: sizes of what stays.
        gathered: of parameters that come and go within the step.
        kept: of what nobody knows that is older than the step and goes within it.
        forward: of further activations.
        backward: of what backward makes, in each of its runs.
        checkpoints: backward makes a block of forward again.
    """
    blocks = [("parameter", "other", size, 0) for size in parameters]
    blocks += [("optimizer_state", "optimizer", size, 0) for size in state]
    blocks += [("unknown", "optimizer", size, 3) for size in kept]
    for _ in range(runs):
        blocks += [("activation", "forward", 64, 1)]
        blocks += [("parameter", "forward", size, 1) for size in gathered]
        blocks += [("activation", "forward", size, 1) for size in forward]
        again = [("activation", "forward", 64, 2)] * checkpoints
        blocks += [("gradient", "backward", 64, 1), *again]
        blocks += [("gradient", "backward", size, 1) for size in backward]
    inside = np.array([each[3] in (1, 2) for each in blocks], bool)
    stays = np.array([not each[3] for each in blocks], bool)
    count = len(blocks)
    none: list[None] = [None] * count
    return Window(
        place=PLACE,
        size=StepSize(step=3, from_seq=0, to_seq=9999, input_bytes=0, peak_bytes=None),
        begin=0,
        end=9999,
        born=np.where(inside, np.arange(count) + 1, 0),
        died=np.where(stays, NEVER, 5000),
        bytes=np.array([each[2] for each in blocks], np.int64),
        category=[each[0] for each in blocks],
        phase=[each[1] for each in blocks],
        recomputed=[each[3] == 2 for each in blocks],
        **dict.fromkeys(("operator", "module", "line", "forward_line"), none),  # type: ignore[arg-type]
        **dict.fromkeys(("function", "forward_function", "stream", "pool"), none),  # type: ignore[arg-type]
    )


def asked(
    *ranks: dict[str, int],
    places: Sequence[dict[str, int]] = (),
    optimizers: Sequence[str] = ("Own",),
    world_size: int | None = None,
) -> Any:
    """Answers what ranks held after step 3, and where they are in the job."""
    none: dict[str, int | None] = {**dict.fromkeys(("tp", "pp", "ep")), "world_size": world_size}
    where = [
        {"rank": rank, "attempt": 0, **none, **(places[rank] if places else {})} for rank in range(len(ranks))
    ]
    rows = [
        {"rank": rank, "device_type": "cpu", "group_name": name, "live_bytes_at_time": size}
        for rank, held in enumerate(ranks)
        for name, size in held.items()
    ]
    steps = [
        {"attempt": 0, "step": step, "ended_ns": 100 * step, "optimizers": list(optimizers)}
        for step in range(5)
    ]
    answers = {"ops_at_time": rows, "rank_coordinates": where, "steps": steps}

    def ask(name: str, **given: Any) -> pa.Table:
        assert name != "ops_at_time" or given["time_ns"] == 300
        return pa.Table.from_pylist(answers[name])

    return ask


def told(ask: Any, of: Window, weights: Weights, replicas: int) -> Already:
    return already(ask, of, weights, coordinates_of(ask, PLACE), replicas, ends_of(ask, of))


def found(of: Window, weights: Weights, ranks: int = 2, optimizer: str = "Own") -> Already:
    """Where all ranks hold the same bytes."""
    held = {"parameter": 1000, "optimizer_state": 1000}
    return told(asked(*[held] * ranks, optimizers=(optimizer,)), of, weights, ranks)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((800, 0), MAY_BE_STATE),
        ((480, 320), STATE),
        # Some train less, or have another optimizer.
        ((800, 804), MAY_BE_STATE),
        ((800, 300), MAY_BE_STATE),
        ((800, 400), MAY_BE_STATE),
    ],
)
def test_unequal_parts_of_a_state_add_up_to_a_whole_one(states: Sequence[int], expected: Already) -> None:
    ask = asked(*[{"parameter": 400, "optimizer_state": each} for each in states])
    small = [weight(10, 10)]
    assert told(ask, window([400], [321]), small, 2) == expected


def test_unequal_parts_of_a_state_are_those_of_what_is_trained() -> None:
    ask = asked(*[{"parameter": 400, "optimizer_state": each} for each in (250, 150)])
    half = [weight(10, 10) | {"grad_size_bytes": 200}]
    assert told(ask, window([400], [321]), half, 2) == STATE


def test_an_optimizer_that_shards_is_known_though_its_shards_are_equal() -> None:
    assert found(window(state=SIZES), MODEL, optimizer="ZeroRedundancyOptimizer") == STATE


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("states", [1, 2, 3])
def test_state_is_whole_where_each_parameter_has_equally_many_blocks_of_it(states: int, ranks: int) -> None:
    assert found(window(state=SIZES * states), MODEL, ranks) == WHOLE
    assert found(window(state=[*SIZES * states, 900]), MODEL, ranks) == WHOLE, "a little beside it"
    assert found(window(state=SIZES * states), [*MODEL, weight(10)], ranks) == WHOLE, "what is too small"
    assert found(window(state=[*SIZES * states, 9000]), MODEL, ranks) == MAY_BE_STATE
    # Of another number of the last one, as where matrices and vectors have optimizers of their own.
    assert found(window(state=[*SIZES * states, 800]), MODEL, ranks) == MAY_BE_STATE


def test_state_of_what_is_trained_alone_is_whole() -> None:
    adapted = [each | {"grad_size_bytes": 0} for each in (LINEAR, LINEAR, HEAD)] + [BIAS, weight(150)]
    assert found(window([*SIZES, 600], [800, 600] * 2), adapted) == WHOLE
    assert found(window([*SIZES, 600], [800, 600] * 2 + [12000]), adapted) == MAY_BE_STATE


@pytest.mark.parametrize(
    ("optimizer", "states", "expected"),
    [("AdamW", 2, WHOLE), ("AdamW", 1, MAY_BE_STATE), ("SGD", 1, WHOLE), ("Own", 2, MAY_BE_STATE)],
)
def test_half_of_equal_parameters_may_be_another_rank_s_unless_the_optimizer_has_no_more(
    optimizer: str, states: int, expected: Already
) -> None:
    """Two blocks for each of four parameters may be four for each of two; AdamW never has four."""
    pairs = [LINEAR, LINEAR, HEAD, HEAD]
    of = window([4000, 4000, 12000, 12000], [4000, 4000, 12000, 12000] * states)
    assert found(of, pairs, 2, optimizer) == expected
    assert found(of, pairs, 3, optimizer) == WHOLE, "a third of two does not come out"


@pytest.mark.parametrize(
    ("numbers", "states", "blocks", "expected"),
    [
        # Two layers over three ranks, of which one has none; four over three; three over two, in AMSGrad.
        (2, (2, 2, 0), 1, MAY_BE_STATE),
        (4, (4, 2, 2), 1, MAY_BE_STATE),
        (3, (6, 3), 2, MAY_BE_STATE),
        # A third of three layers would have more than three blocks of each.
        (3, (9, 6), 3, WHOLE),
        (1, (2, 1), 1, WHOLE),
    ],
)
def test_an_uneven_part_of_equal_parameters_may_be_a_rank_s(
    numbers: int, states: Sequence[int], blocks: int, expected: Already
) -> None:
    """Ranks hold unequal state, and one as much as all of one kind."""
    layers = [LINEAR, HEAD] * numbers
    of = window([4000, 12000] * numbers, [4000, 12000] * numbers * blocks)
    held = [{"parameter": 16000 * numbers, "optimizer_state": 16000 * each} for each in states]
    assert told(asked(*held, optimizers=["AdamW"]), of, layers, len(states)) == expected


def test_ranks_that_train_other_parts_share_no_state() -> None:
    """Each has all of what it trains: four, five and seven layers, 32 of state, eight times the first's."""
    held = [{"parameter": 16 * 4000, "optimizer_state": 2 * 4000 * each} for each in (4, 5, 7)]
    layers = [LINEAR] * 4 + [LINEAR | {"grad_size_bytes": 0}] * 12
    of = window([4000] * 16, [4000] * 8)
    assert told(asked(*held, optimizers=["AdamW"]), of, layers, 3) == WHOLE
    assert told(asked(*held, optimizers=["Own"]), of, layers, 3) == MAY_BE_STATE


def test_an_optimizer_without_state_may_have_it_on_other_ranks() -> None:
    held = [{"parameter": 20800, "optimizer_state": each} for each in (0, 20800)]
    assert told(asked(*held, optimizers=["SGD"]), window(), MODEL, 2) == MAY_BE_STATE


def test_one_optimizer_of_two_that_shards_leaves_the_other_s_state() -> None:
    held = [{"parameter": 20800, "optimizer_state": 1000}] * 2
    both = asked(*held, optimizers=["AdamW", "ZeroRedundancyOptimizer"])
    assert told(both, window(state=SIZES), MODEL, 2) == MAY_BE_STATE
    part = window([20800, FLAT], [FLAT] * 2, backward=SIZES)
    assert told(asked(*held, optimizers=["Own"]), part, MODEL, 2) == STATE
    # Half of the elements may have an optimizer without copies and state.
    assert told(asked(*held, optimizers=["Own", "SGD"]), part, MODEL, 2) == MAY_BE_STATE


@pytest.mark.parametrize(("ranks", "expected"), [(2, MAY_BE_STATE), (4, MAY_BE_STATE), (3, WHOLE)])
def test_half_of_each_element_may_be_half_of_the_elements(ranks: int, expected: Already) -> None:
    assert found(window(state=[size // 2 for size in SIZES] * 2), MODEL, ranks) == expected


def test_half_of_each_element_in_64_bits_is_as_large_as_all_in_32() -> None:
    doubles = [weight(10, 100, bits=64), weight(30, 100, bits=64)]
    sizes = [8000, 24000]
    assert found(window(sizes, [4000, 12000] * 2), doubles) == MAY_BE_STATE
    assert found(window(sizes, sizes * 2), doubles, optimizer="AdamW") == WHOLE


def test_state_as_wide_as_its_parameters_in_16_bits_is_whole_without_copies() -> None:
    halves = [weight(10, 100, bits=16), weight(10, 100, bits=16), weight(30, 100, bits=16)]
    sizes = [2000, 2000, 6000]
    assert found(window(sizes, sizes * 2), halves, optimizer="AdamW") == WHOLE
    # An optimizer of one's own may have half of each in 32 bits.
    assert found(window(sizes, sizes * 2), halves) == MAY_BE_STATE
    # An average of the weights, or halves of copies in 32 bits.
    assert found(window(sizes * 2, sizes * 2), halves) == MAY_BE_STATE
    copies = [2 * size for size in sizes]
    assert found(window(sizes + copies, copies * 2), halves) == WHOLE, "copies of all"


FLAT = 20800 // 2
"""Half of the elements of MODEL."""
UNSEEN = [each | {"grad_size_bytes": 0} for each in MODEL]
"""No optimizer sees the gradients of the model's own parameters."""


@pytest.mark.parametrize(("ranks", "padding"), [(2, 0), (2, 64), (3, 0), (4, 0)])
@pytest.mark.parametrize("states", [1, 2])
def test_copies_that_are_an_even_part_of_the_elements_are_a_sharded_state(
    states: int, ranks: int, padding: int
) -> None:
    """DeepSpeed's ZeRO-1: an optimizer that steps on a flat part, whose state is as large."""
    part = 20800 // ranks + padding
    of = window([20800, part], [part] * states, backward=SIZES)
    assert found(of, UNSEEN, ranks) == STATE_OR_GRADIENTS
    assert found(of, MODEL, ranks) == STATE, "gradients are whole: the optimizer's step found them"
    assert found(window([*SIZES], [part] * states, backward=SIZES), UNSEEN, ranks) == MAY_BE_GRADIENTS
    assert found(of, UNSEEN, 5) == MAY_BE_GRADIENTS, "a part is no fifth"
    # Other copies than those that the state follows.
    of = window([20800, 2 * part], [part] * states, backward=SIZES)
    assert found(of, UNSEEN, ranks) == MAY_BE_GRADIENTS


def test_each_copy_has_as_many_blocks_of_state() -> None:
    """Three for two copies are none, though one and a half of them were half of the elements."""
    third = 6932
    of = window([20800, third, third], [third] * 3, backward=SIZES)
    assert found(of, UNSEEN) == MAY_BE_GRADIENTS


def test_a_checkpoint_is_no_further_run_of_backward() -> None:
    of = window([20800, FLAT], [FLAT] * 2, backward=SIZES, checkpoints=True)
    assert found(of, UNSEEN) == STATE_OR_GRADIENTS


def test_parts_over_some_of_the_ranks_are_parts_too() -> None:
    of = window([20800, FLAT], [FLAT] * 2, backward=SIZES)
    assert found(of, UNSEEN, 4) == STATE_OR_GRADIENTS


def test_pieces_of_parameters_are_parts_where_not_all_are_whole() -> None:
    """Megatron's distributed optimizer: whole parameters, and a piece of the one that two ranks share."""
    halves = [each | {"size_bytes": each["size_bytes"] // 2} for each in UNSEEN]
    halves = [each | {"dtype": "bfloat16"} for each in halves]
    births = [size // 2 for size in SIZES]
    pieces = [4000, 4000, 2400]
    assert found(window([10400, *pieces], pieces * 2, backward=births), halves) == STATE_OR_GRADIENTS
    whole = [4000, 4000]
    assert found(window([10400, *whole], whole * 2, backward=births), halves) == MAY_BE_GRADIENTS


def test_copies_of_the_whole_model_are_not_sharded() -> None:
    """Flat ones in 32 bits of a model in 16."""
    halves = [weight(10, 100, bits=16, grad=False), weight(30, 100, bits=16, grad=False)]
    births = [2000, 6000]
    assert found(window([2000, 6000, 16000], [16000] * 2, backward=births), halves) == WHOLE
    assert found(window([2000, 6000, 8064], [8064] * 2, backward=births), halves) == STATE_OR_GRADIENTS


@pytest.mark.parametrize("runs", [1, 2])
def test_copies_of_all_that_is_trained_are_no_part_of_it(runs: int) -> None:
    """Beside a frozen teacher as large, whose gradients nobody makes, in however many runs of backward."""
    both = UNSEEN * 2
    of = window([*SIZES, *SIZES, 20800], [20800] * 2, backward=SIZES, runs=runs)
    assert found(of, both) == MAY_BE_GRADIENTS
    of = window([*SIZES, *SIZES, FLAT], [FLAT] * 2, backward=SIZES, runs=runs)
    assert found(of, both) == STATE_OR_GRADIENTS


def test_gradients_of_activations_as_large_as_frozen_parameters_are_none_of_theirs() -> None:
    """Backward goes through a frozen model as large; copies have all that is trained."""
    of = window([*SIZES, *SIZES, 20800], [20800] * 2, forward=SIZES, backward=SIZES * 2)
    assert found(of, UNSEEN * 2) == MAY_BE_GRADIENTS


@pytest.mark.parametrize(
    "state",
    [
        [20800, 20800],
        [10400, 10400],
        # Rows and columns; a projection to fewer rows.
        [40, 400, 40, 400, 120, 400, 800],
        [2000, 2000, 6000, 800] * 2,
    ],
)
def test_without_copies_nobody_knows_what_other_blocks_of_state_are(state: list[int]) -> None:
    assert found(window(state=state), MODEL) == MAY_BE_STATE


def test_an_optimizer_without_state_has_none_to_shard() -> None:
    assert found(window(), MODEL, optimizer="SGD") == WHOLE
    # Of others it may be elsewhere, as beside copies.
    assert found(window(), MODEL, optimizer="AdamW") == MAY_BE_STATE
    assert found(window([*SIZES, FLAT]), MODEL, optimizer="SGD") == MAY_BE_STATE


def test_one_rank_has_nothing_sharded() -> None:
    assert found(window(state=[FLAT]), MODEL, 1) == WHOLE


@pytest.mark.parametrize(("world_size", "expected"), [(1, WHOLE), (2, MAY_BE_ALL)])
def test_of_ranks_that_were_not_recorded_nobody_knows_what_they_hold(
    world_size: int, expected: Already
) -> None:
    ask = asked({"parameter": 1000}, places=[{"dp": 0}], world_size=world_size)
    assert told(ask, window(state=SIZES * 2), [TABLE], 1) == expected


@pytest.mark.parametrize(
    ("optimizer", "weights", "expected"),
    [
        ("AdamW", MODEL, WHOLE),
        ("AdamW", [LINEAR, HEAD, BIAS], WHOLE),
        # Two blocks of each of two equal ones may be AMSGrad's of some.
        ("AdamW", [LINEAR, LINEAR, HEAD, HEAD], WHOLE),
        ("Own", [LINEAR, LINEAR, HEAD, HEAD], MAY_BE_STATE),
        ("ZeroRedundancyOptimizer", MODEL, STATE),
    ],
)
def test_a_rank_alone_shows_what_no_part_could_be(
    optimizer: str, weights: Weights, expected: Already
) -> None:
    sizes = [each["size_bytes"] for each in weights]
    held = {"parameter": sum(sizes), "optimizer_state": 2 * sum(sizes)}
    ask = asked(held, optimizers=[optimizer], places=[{"dp": 0}], world_size=4)
    assert told(ask, window(sizes, sizes * 2), weights, 1) == expected


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("bits", [32, 16])
def test_flat_parameters_that_are_gathered_are_sharded(bits: int, ranks: int) -> None:
    """FSDP1, with its own flat parameters or with views of them; in 16 bits also a rank's own part."""
    whole = [ranks * size * bits // 32 for size in (4800, 3200)]
    own = [] if bits == 32 else [2400, 1600]
    for rows in ([weight(1200), weight(800)], [weight(700), weight(500), weight(800)]):
        of = window([4800, 3200], [4800, 3200] * 2, gathered=whole + own)
        assert found(of, rows, ranks) == PARAMETERS
        assert found(window([4800, 3200], [4800, 3200] * 2, gathered=own), rows, ranks) == MAY_BE_ALL


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("sizes", [[4800, 3200], [800, 800, 800, 1600], [1600, 800, 400], []])
def test_copies_that_come_and_go_are_not_gathered(sizes: list[int], times: int) -> None:
    """Of flat parameters, in as many bytes or half."""
    rows = [weight(size // 4) for size in sizes]
    for copies in (sizes, [size // 2 for size in sizes]):
        of = window(sizes, sizes * 2, gathered=copies * times)
        assert found(of, rows, 2) == MAY_BE_ALL
    assert found(window([4800], gathered=[4800, 9600]), [], 2) == MAY_BE_ALL, "unknown parameters"


def test_copies_beside_a_parameter_without_elements_are_not_gathered() -> None:
    empty = weight(0, grad=False)
    of = window([*SIZES, 41600], SIZES * 2, gathered=[2 * size for size in SIZES] * 2)
    assert found(of, [empty, *MODEL]) == MAY_BE_ALL
    assert found(window([*SIZES, 20800], SIZES * 2, gathered=[20800] * 2), [empty, *MODEL]) == MAY_BE_ALL


def test_parameters_with_shapes_of_their_own_are_whole_though_copies_of_them_come_and_go() -> None:
    """FSDP1 that shards nothing, in 16 bits."""
    assert found(window([20800], SIZES * 2, gathered=[10400]), MODEL) == WHOLE
    assert found(window([10400], SIZES * 2, gathered=[10400]), MODEL) == MAY_BE_ALL, "half of them stays"
    # Beside an average of them.
    assert found(window([*SIZES, 20800], SIZES * 2, gathered=[20800]), MODEL) == WHOLE


def test_parameters_without_elements_between_their_uses_are_sharded() -> None:
    """ZeRO-3: partitions and copies of these stay; small parameters do too."""
    empty = weight(0, grad=False)
    of = window([20800, 10400], [20800] * 2, gathered=SIZES)
    assert found(of, [empty]) == PARAMETERS
    assert found(of, [empty, weight(10, 10, grad=False)]) == PARAMETERS
    # A parameter without elements beside others.
    assert found(window(state=SIZES * 2, gathered=SIZES), [empty, *MODEL]) == MAY_BE_ALL
    assert found(window([20800, 10400], [20800] * 2), [empty]) == MAY_BE_ALL
    assert found(window([]), [empty]) != PARAMETERS, "nothing stays"


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ((), PARAMETERS),
        (SIZES, GRADIENTS),
        # Over three ranks a whole one is padded.
        ([size + 8 for size in SIZES], GRADIENTS),
        ([4000, 4000, 800], PARAMETERS),
        # Each block is one parameter at most, of its size.
        ([4000] * 5, PARAMETERS),
        ([20800], PARAMETERS),
    ],
)
def test_partitions_of_parameters_that_stay_whole_may_be_all_that_is_sharded(
    kept: list[int], expected: Already
) -> None:
    """ZeRO-3 with a high ``stage3_param_persistence_threshold``."""
    parts = [weight(10, 100, share=0.5), weight(10, 100, share=0.5), weight(30, 100, share=0.5)]
    parts.append(weight(200, share=0.5))
    assert found(window([10400, 10400], [10400] * 2, kept=kept), parts) == expected


def test_parameters_split_by_tensor_parallelism_are_whole_to_data_parallel_ranks() -> None:
    held = [{"parameter": 2000, "optimizer_state": 4000}] * 4
    two = [{"tp": rank % 2} for rank in range(4)]
    of = window([2000], [2000] * 2)
    ask = asked(*held, places=two, optimizers=["AdamW"])
    assert told(ask, window([2000, 800], [2000, 800] * 2), [TABLE, BIAS], 2) == WHOLE
    # Over the data-parallel ranks if tensor parallelism leaves its parameters' shapes.
    assert told(ask, of, [TABLE], 2) == MAY_BE_ALL
    # Over two and two ranks.
    assert told(ask, of, [TABLE | {"size_bytes": 1000}], 2) == PARAMETERS
    assert told(asked(*held), of, [TABLE], 2) == PARAMETERS


def test_parts_smaller_than_tensor_parallelism_makes_them_may_be_sharded() -> None:
    """All over two ranks, and some of them over four others too."""
    held = [{"parameter": 20000, "optimizer_state": 40000}] * 8
    rows = [weight(100, 100, share=0.5), weight(30, 10, share=0.125)]
    sizes = [each["size_bytes"] for each in rows]
    ask = asked(*held, places=[{"tp": rank % 4} for rank in range(8)], optimizers=["AdamW"])
    assert told(ask, window(sizes, sizes * 2), rows, 2) == MAY_BE_ALL


@pytest.mark.parametrize("world_size", [2, 4])
def test_parts_beside_a_whole_parameter_may_be_sharded_where_others_were_not_recorded(
    world_size: int,
) -> None:
    """FSDP2 of the blocks alone, or tensor parallelism: a rank shows neither."""
    rows = [weight(10, 100, share=1 / world_size)] * 5 + [weight(10, 100)]
    sizes = [each["size_bytes"] for each in rows]
    held = {"parameter": sum(sizes), "optimizer_state": 2 * sum(sizes)}
    ask = asked(held, places=[{"dp": 0}], world_size=world_size, optimizers=["AdamW"])
    assert told(ask, window(sizes, sizes * 2), rows, 1) == MAY_BE_ALL


def test_one_part_beside_whole_parameters_is_not_a_sharded_job() -> None:
    of = window([2000, 4000], [2000, 4000] * 2)
    assert found(of, [TABLE, LINEAR]) == WHOLE
    unknown = {"size_bytes": None, "grad_size_bytes": 0, "dtype": "float32", "shape": "[10, 10]"}
    assert found(of, [TABLE, TABLE, LINEAR | {"size_bytes": 3000}, unknown]) == PARAMETERS


@pytest.mark.parametrize(
    "odd",
    [
        {"size_bytes": 4000, "grad_size_bytes": 0, "dtype": "int8", "shape": "[40, 100]"},
        {"size_bytes": 4000, "grad_size_bytes": None, "dtype": None, "shape": "[10, 100]"},
    ],
)
def test_of_parameters_of_unknown_elements_nothing_is_told(odd: dict[str, Any]) -> None:
    assert found(window([4000], [4000] * 2), [odd]) == MAY_BE_GRADIENTS
    assert found(window([4000], [4000] * 2), []) == MAY_BE_ALL
    assert found(window([4000], [4000] * 2), [odd | {"shape": None}]) == MAY_BE_ALL


def test_state_is_compared_between_ranks_of_one_stage_alone() -> None:
    held = [{"parameter": 400, "optimizer_state": each} for each in (480, 320, 800, 800)]
    stages = [{"pp": rank // 2} for rank in range(4)]
    small, of = [weight(10, 10)], window([400], [321])
    assert told(asked(*held, places=stages), of, small, 2) == STATE
    apart = [{"pp": rank} for rank in range(4)]
    assert told(asked(*held, places=apart), of, small, 2) == MAY_BE_STATE
    # Other stages have other parameters, and other state.
    held = [{"parameter": each, "optimizer_state": 2 * each} for each in (400, 300)]
    assert told(asked(*held), of, small, 2) == MAY_BE_STATE


def test_the_devices_of_a_rank_add_up() -> None:
    answers = asked(*[{"parameter": 200, "optimizer_state": 400}] * 2)
    tables = {name: answers(name) for name in ("rank_coordinates", "steps")}
    # Of two devices each: the ranks' state is equal, that of their last devices is not.
    parts = [(0, 360), (0, 440), (1, 400), (1, 400)]
    tables["ops_at_time"] = pa.Table.from_pylist(
        [
            {"rank": r, "device_type": "cpu", "group_name": name, "live_bytes_at_time": size}
            for r, state in parts
            for name, size in (("parameter", 200), ("optimizer_state", state))
        ]
    )
    assert told(lambda name, **_: tables[name], window([400], [321]), [weight(10, 10)], 2) == MAY_BE_STATE


@pytest.mark.parametrize(
    ("places", "replicas"),
    [
        ([{}] * 6, 6),
        ([{"dp": rank} for rank in range(6)], 6),
        ([{"dp": rank % 2} for rank in range(6)], 2),
        # Nobody names the data-parallel ranks where there are none.
        ([{"tp": rank} for rank in range(6)], 1),
        ([{"tp": rank % 2, "pp": 0} for rank in range(6)], 3),
        ([{"cp": rank} for rank in range(6)], 6),
        # Context-parallel ranks have the same parameters; some count them among those of dp.
        ([{"dp": 0, "cp": rank} for rank in range(6)], 6),
        ([{"dp": rank // 3, "cp": rank % 3} for rank in range(6)], 6),
        ([{"dp": rank, "cp": rank % 3} for rank in range(6)], 6),
        ([{"dp": rank // 4, "cp": rank // 2 % 2, "tp": rank % 2} for rank in range(8)], 4),
    ],
)
def test_as_many_ranks_hold_the_same_parameters_as_other_coordinates_leave(
    places: list[dict[str, int]], replicas: int
) -> None:
    none = dict.fromkeys(("dp", "tp", "pp", "cp", "ep"))
    ranks = [{"attempt": 0, **none, **each} for each in places]
    answers = {"rank_coordinates": ranks, "session_row": [{"world_size": len(places)}]}
    ask = lambda name, **_: pa.Table.from_pylist(answers[name])  # noqa: E731
    assert replicas_of(ask, PLACE, ranks) == replicas
