"""What a job of several ranks has sharded over its data-parallel ranks already.

Stage: insights. In: a way to ask named queries, the blocks of a steady step, and the parameters by name. Out:
what is surely sharded, and what may be. It goes by what is counted: blocks of parameters and of state, how
many elements the trained parameters have, and over how many ranks.

- *Parameters* are sharded, where most of their bytes are of ones whose shape has more than tensor parallelism
  explains (FSDP2); where the rows are flat and a multiple of each block of parameters that stays comes and
  goes within a step (FSDP1); or where parameters have no elements outside of their use and others, no copies
  of what stays, come and go so (ZeRO-3). They may be whole beside their parts, as ZeRO-3 can keep them, where
  most are there from one step to the next. They are whole, where what stays holds as many bytes as rows with
  shapes of their own.
- *State* is sharded, where its optimizer is known for it; where ranks hold the same bytes of parameters and
  other bytes of state; or where the optimizer steps on copies of its own, each with its state, that are an
  even part of the trained elements, and some of them no parameter (DeepSpeed's ZeRO-1 and 2, Megatron's
  distributed optimizer). It is whole, where each trained parameter has equally many blocks of its number of
  elements, which a part of the parameters could not have: an even part where all ranks hold as many bytes,
  else any.

All else cannot be told: factored state, parts without copies of their own, the state of some only. So cannot
what a rank alone does not show where others were not recorded: whether its parts are those of tensor
parallelism.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, get_args

import numpy as np

from rankmem_aggregator.insights.answer import Ask
from rankmem_aggregator.insights.input_shapes import shape_of
from rankmem_aggregator.insights.lives import Array
from rankmem_aggregator.insights.windows import COMPUTING, LASTING, NEVER, STATE, Place, Window

Sharded = Literal["nothing", "state", "gradients", "parameters"]
"""What is over ranks, each with those before it."""
LEVELS: Final[tuple[Sharded, ...]] = get_args(Sharded)
"""From none to all."""
Weights = Sequence[Mapping[str, Any]]
"""``size_bytes``, ``grad_size_bytes``, ``dtype`` and ``shape`` of each parameter of a rank."""
Coordinates = Sequence[Mapping[str, Any]]
"""``rank``, ``world_size``, ``dp``, ``tp``, ``pp``, ``cp`` and ``ep`` of each recorded rank."""
Ends = Sequence[Mapping[str, Any]]
"""``ended_ns`` and ``optimizers`` of each end of a step."""
_Kind = tuple[int, int]
"""Elements of a parameter, and bytes of each."""

SPLIT: Final = ("tp", "pp", "ep")
"""Coordinates by which ranks have other parameters."""
PART: Final = 1.25
"""How many times its own bytes a parameter's shape has at least, if others have the rest: two parts may not
be equal."""
STATE_SHARDING: Final = "ZeroRedundancyOptimizer"
"""The class of PyTorch's optimizer that leaves each rank the state of some parameters."""
NEAR: Final = 0.01
"""How much bytes may differ that are taken for equal: of rounding, of padding, and of scalars beside the
state."""
BESIDE: Final = 0.1
"""The share of a state that may be beside its elements: scales of 8 bits, and what is too small to count."""
WIDTHS: Final = (4, 2, 1, 8)
"""Bytes of an element of a state."""
COPY_WIDTH: Final = 4
"""Bytes of an element of the copies that an optimizer steps on itself."""
STATES_MAX: Final = {
    **dict.fromkeys(("SGD", "Adagrad", "ASGD"), 1),
    **dict.fromkeys(("NAdam", "RAdam", "Adamax", "Adadelta", "Rprop"), 2),
    **dict.fromkeys(("Adam", "AdamW", "RMSprop"), 3),
}
"""Blocks of state that an optimizer has of a parameter, at most (torch.optim 2.13); three in AMSGrad. Each is
as wide as the parameter."""
COUNTED: Final = 128
"""Bytes of a block, and elements of a parameter, from which on they are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Already:
    """What is over ranks."""

    surely: Sharded
    maybe: Sharded
    """The same, or more where that cannot be told."""

    @classmethod
    def just(cls, what: Sharded) -> Self:
        """Where it is known."""
        return cls(surely=what, maybe=what)

    @property
    def known(self) -> Sharded | None:
        """What it is, without gradients, of which ``state`` says nothing; None: not known to be anything."""
        return None if self.surely == "nothing" != self.maybe else self.surely


WHOLE: Final = Already.just("nothing")


def already(
    ask: Ask, window: Window, weights: Weights, coordinates: Coordinates, replicas: int, ends: Ends
) -> Already:
    """What a job seems to have sharded.

    Args:
        window: a steady step of a rank, after which ranks are compared.
        weights: the parameters of that rank.
        coordinates: of the recorded ranks.
        replicas: ranks with the same parameters, by those that were recorded.
        ends: of the step.
    """
    world_size = max((row["world_size"] or 1 for row in coordinates), default=0)
    are_all = len(coordinates) >= world_size
    if are_all and replicas < 2:
        return WHOLE
    held = _Held.after(window)
    # Of ranks that were not recorded nobody knows the coordinates.
    counts = _counts(replicas if are_all else world_size)
    tensor_parallel = 1 + max((row["tp"] or 0 for row in coordinates), default=0) if are_all else world_size
    have_parts = _have_parts(weights, tensor_parallel, is_known=are_all)
    if have_parts and held.are_kept_whole(weights):
        return Already(surely="gradients", maybe="parameters")
    if have_parts or held.are_gathered(weights, counts):
        return Already.just("parameters")
    is_sharded = _is_state_sharded(ask, window, held, weights, coordinates, counts, ends)
    if have_parts is None or not held.are_whole(weights):
        return Already(surely="state" if is_sharded else "nothing", maybe="parameters")
    if is_sharded is False:
        return WHOLE
    return Already(
        surely="state" if is_sharded else "nothing",
        maybe="state" if _have_gradients(weights) else "gradients",
    )


def coordinates_of(ask: Ask, place: Place) -> Coordinates:
    """Where in the job each recorded rank of a start of its workers is: rows of ``rank_coordinates``."""
    rows = ask("rank_coordinates", session=place.session_id).to_pylist()
    return [row for row in rows if row["attempt"] == place.attempt]


def ends_of(ask: Ask, window: Window) -> Ends:
    """The ends of a step: rows of ``steps``."""
    place = window.place
    rows = ask("steps", session=place.session_id, rank=place.rank).to_pylist()
    return [row for row in rows if (row["attempt"], row["step"]) == (place.attempt, window.size.step)]


def optimizers_of(ends: Ends) -> set[str]:
    """The classes of the optimizers that stepped."""
    return {name for row in ends for name in row["optimizers"]}


def _counts(replicas: int) -> list[int]:
    """Over how many ranks may be sharded: all, or groups of equally many."""
    return [count for count in range(2, replicas + 1) if replicas % count == 0]


def _have_parts(weights: Weights, tensor_parallel: int, *, is_known: bool) -> bool | None:
    """Whether most bytes are of parameters whose shapes are larger than tensor parallelism leaves them.

    None: they are parts, which it may not explain: some are smaller than it makes them, or none is whole.

    Args:
        tensor_parallel: over how many ranks, at most.
        is_known: it is there, by what was recorded.
    """

    def are_most(least: float) -> bool:
        parts = sum(each["size_bytes"] for each in weights if _share(each) > least)
        return bool(2 * parts > _bytes_of(weights))

    if are_most(PART * tensor_parallel):
        return True
    if not are_most(PART):
        return False
    shares = [_share(each) for each in weights if shape_of(each["shape"] or "")[:1] > (1,)]
    is_explained = any(each <= PART for each in shares) and max(shares) <= PART * tensor_parallel
    return False if is_explained and is_known else None


def _bytes_of(weights: Weights) -> int:
    return sum(each["size_bytes"] or 0 for each in weights)


def _have_gradients(weights: Weights) -> bool:
    """Whether an optimizer's step found gradients of the model's own parameters."""
    return any(each["grad_size_bytes"] for each in weights)


def _has_empty(weights: Weights) -> bool:
    """Whether a parameter has no elements, as ZeRO-3 leaves them outside of their use."""
    return any(each["size_bytes"] == 0 for each in weights)


def _are_shaped(weights: Weights) -> bool:
    """Whether most bytes are of parameters with shapes of their own, which flat ones have not."""
    shaped = [each for each in weights if len(shape_of(each["shape"] or "")) > 1]
    return 2 * _bytes_of(shaped) > _bytes_of(weights)


def _share(weight: Mapping[str, Any]) -> float:
    """How many times the bytes of a parameter its shape has; 1 where that is not known."""
    own = weight["size_bytes"]
    return _whole(weight) / own if own else 1


def _whole(weight: Mapping[str, Any]) -> int:
    """The bytes that the shape of a parameter has; its own where that is not known."""
    bits = re.search(r"float(16|32|64)$", weight["dtype"] or "")
    if bits is None or not weight["shape"]:
        return int(weight["size_bytes"] or 0)
    return math.prod(shape_of(weight["shape"])) * int(bits[1]) // 8


def _kind(weight: Mapping[str, Any]) -> _Kind:
    """Of this rank; zeros where that is not known."""
    bits = re.search(r"\d+", weight["dtype"] or "")
    width = int(bits[0]) // 8 if bits else 0
    return (weight["size_bytes"] or 0) // width if width else 0, width


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """How many blocks of each size a step had."""

    parameters: Counter[int]
    """That are older than the step, and outlive it."""
    gathered: Counter[int]
    """Parameters that come and go within it."""
    kept: Counter[int]
    """Parameters, or what nobody knows, that are older than the step and go within it."""
    state: Counter[int]
    """That outlives it."""
    backward: Counter[int]
    """That backward made in one of its runs, on average."""
    before: frozenset[int]
    """Sizes of what is made before it, of which backward makes gradients too."""

    @classmethod
    def after(cls, window: Window) -> Self:
        category, phase = np.array(window.category), np.array([each or "" for each in window.phase])
        inside = np.arange(len(window)) >= window.num_older
        stays = window.died >= NEVER
        is_parameter = category == "parameter"

        is_run = inside & np.isin(phase, COMPUTING) & ~np.array(window.recomputed, bool)
        is_backward = phase[is_run] == "backward"
        runs = int((is_backward[1:] & ~is_backward[:-1]).sum())

        def sizes(which: Array) -> Counter[int]:
            return Counter(window.bytes[which & (window.bytes >= COUNTED)].tolist())

        made = sizes(inside & (phase == "backward"))
        before = sizes(inside & np.isin(phase, ("forward", "other")) & ~np.isin(category, list(LASTING)))
        return cls(
            parameters=sizes(is_parameter & ~inside & stays),
            gathered=sizes(is_parameter & inside & ~stays),
            kept=sizes(np.isin(category, ("parameter", "unknown")) & ~inside & ~stays),
            state=sizes((category == STATE) & stays),
            backward=Counter({size: number // max(runs, 1) for size, number in made.items()}),
            before=frozenset(before),
        )

    def are_gathered(self, weights: Weights, counts: Sequence[int]) -> bool:
        """Whether parameters are whole only where they are used, as FSDP1 and ZeRO-3 have it."""
        stay = _total(self.parameters)
        # What is as large as a parameter or as another block is a copy of it.
        known = {elements * width for elements, _ in map(_kind, weights) for width in WIDTHS}
        others = {size: number for size, number in self.gathered.items() if size not in known}
        others = {size: number for size, number in others.items() if size not in self.parameters}
        if _has_empty(weights) and 2 * _bytes_of(weights) <= stay <= 2 * _total(others) and stay > 0:
            return True
        if not weights or _are_shaped(weights):
            return False
        return stay > 0 and any(self._are_flat(count) or self._are_flat_in_16(count) for count in counts)

    def _are_flat(self, count: int) -> bool:
        """Whether so many times as much as each block that stays comes and goes.

        Copies of the largest one are no larger.
        """
        return all(self.gathered[count * size] >= number for size, number in self.parameters.items())

    def _are_flat_in_16(self, count: int) -> bool:
        """The same in 16 bits, in which a rank's own part comes and goes too.

        Copies of the smallest one in 32 bits are no smaller, those of the largest in 16 no larger.
        """
        return all(
            self.gathered[size // 2] >= number and self.gathered[count * size // 2] >= number
            for size, number in self.parameters.items()
        )

    def are_kept_whole(self, weights: Weights) -> bool:
        """Whether most parameters are whole from one step to the next, beside their parts.

        ZeRO-3 lets go of them in its step and gathers them again; a whole one may be padded.
        """
        kept, found = sorted(self.kept.elements()), 0
        whole = sorted(map(_whole, weights), reverse=True)
        for size in whole:
            place = bisect_left(kept, size)
            if place < len(kept) and kept[place] <= (1 + NEAR) * size:
                found += size
                del kept[place]
        return 2 * found > sum(whole)

    def are_whole(self, weights: Weights) -> bool:
        """Whether parameters with shapes of their own are there outside of their use too."""
        are_there = _total(self.parameters) >= (1 - 2 * NEAR) * _bytes_of(weights)
        return are_there and _are_shaped(weights) and not _has_empty(weights)

    def trained(self, weights: Weights) -> Counter[_Kind]:
        """How many trained parameters there are of each kind.

        Those with a gradient; where no row has one, as of DeepSpeed's, those as large as what backward made.
        """
        with_gradient = [each for each in weights if each["grad_size_bytes"]]
        if with_gradient:
            return Counter(map(_kind, with_gradient))
        found = Counter(map(_kind, weights))
        return Counter(
            {kind: min(number, self.backward[kind[0] * kind[1]]) for kind, number in found.items()}
        )

    def doubtful(self, trained: Counter[_Kind]) -> Counter[_Kind]:
        """Those of which what backward made may be the gradients of something else that is as large."""
        return Counter({kind: number for kind, number in trained.items() if kind[0] * kind[1] in self.before})


def _total(sizes: Mapping[int, int]) -> int:
    return sum(size * number for size, number in sizes.items())


def _is_state_sharded(
    ask: Ask,
    window: Window,
    held: _Held,
    weights: Weights,
    coordinates: Coordinates,
    counts: Sequence[int],
    ends: Ends,
) -> bool | None:
    """None: cannot be told."""
    place = window.place
    optimizers = optimizers_of(ends)
    if STATE_SHARDING in optimizers:
        return True if len(optimizers) == 1 else None
    time_ns = max(row["ended_ns"] for row in ends)
    states_of_ranks, own = _states_of_ranks(ask, place, time_ns, coordinates)
    is_even = len(states_of_ranks) >= counts[-1] and not _differ(states_of_ranks)
    trained = held.trained(weights)
    beyond = _total(held.parameters) - _bytes_of(weights)
    has_copies = beyond > NEAR * _bytes_of(weights)
    if not held.state:
        # With copies of its own an optimizer may have its state elsewhere, and so may other ranks.
        return False if optimizers == {"SGD"} and is_even and not has_copies else None
    may_be_wider = has_copies or not optimizers <= STATES_MAX.keys()
    states = _states_of_each(held.state, trained, counts, may_be_wider)
    if states is not None and not _may_be_of_a_part(states, trained, counts, is_even, optimizers):
        return False
    bytes_trained = sum(each["grad_size_bytes"] or 0 for each in weights) or own
    most = max(STATES_MAX.values()) * max(COPY_WIDTH * _elements(trained) / max(bytes_trained, 1), 1)
    if own and _are_shards(states_of_ranks, bytes_trained, most):
        return True
    if states is not None or len(optimizers) > 1:
        return None
    return _are_steps_on_parts(held, weights, beyond, trained, counts)


def _states_of_each(
    state: Counter[int], trained: Counter[_Kind], counts: Sequence[int], may_be_wider: bool
) -> int | None:
    """How many blocks of state each trained parameter has; None: not all have equally many.

    Args:
        may_be_wider: its elements may have more bytes than the parameters'.
    """
    left, found = Counter(state), 0
    for (elements, own), number in sorted(trained.items(), reverse=True):
        if elements < COUNTED:
            break
        for width in WIDTHS:
            each, rest = divmod(left[elements * width], number) if number else (0, 0)
            # A half of each in 32 bits is as large as all of it in 16.
            may_be_part = any(count * width <= max(COPY_WIDTH, own) for count in counts)
            if may_be_part and (may_be_wider or width != own):
                continue
            if each and not rest and found in (0, each):
                found = each
                del left[elements * width]
                break
        else:
            return None
    return found if found and _total(left) <= BESIDE * _total(state) else None


def _may_be_of_a_part(
    states: int, trained: Counter[_Kind], counts: Sequence[int], is_even: bool, optimizers: set[str]
) -> bool:
    """Whether a rank may have the state of a part of the parameters of each size, and others the rest.

    Not where that would not come out, or where the optimizer would have more than it ever has.

    Args:
        states: blocks of it for each parameter.
        is_even: all ranks have as many bytes of it.
    """
    common = math.gcd(*(number for (elements, _), number in trained.items() if elements >= COUNTED))
    each = states * common
    most = STATES_MAX.get(next(iter(optimizers)), each) if len(optimizers) == 1 else each
    of_a_part = [count * states for count in counts] if is_even else range(states + 1, most + 1)
    return any(number <= most and each % number == 0 for number in of_a_part)


def _are_steps_on_parts(
    held: _Held, weights: Weights, beyond: int, trained: Counter[_Kind], counts: Sequence[int]
) -> bool | None:
    """Whether the optimizer's own copies, which its state follows, are an even part of what is trained.

    Not, where they have all elements of the model.

    Args:
        beyond: bytes of parameters that are not the model's own.
    """
    model = Counter(map(_kind, weights))
    known = {elements * width for elements, _ in model for width in WIDTHS}
    has_pieces = any(size not in known for size in held.state)
    are_known = _have_gradients(weights) or _elements(held.doubtful(trained)) <= NEAR * _elements(trained)
    for states in range(1, max(STATES_MAX.values()) + 1):
        copies = {size: number / states for size, number in held.state.items()}
        if any(number % 1 or number > held.parameters[size] for size, number in copies.items()):
            continue
        own = sum(size * number for size, number in copies.items()) / COPY_WIDTH
        if COPY_WIDTH * own > (1 + NEAR) * beyond:
            continue
        if own >= (1 - NEAR) * _elements(model):
            return False
        parts = _elements(trained) / own
        if has_pieces and are_known and any(abs(parts - count) <= NEAR * count for count in counts):
            return True
    return None


def _elements(kinds: Counter[_Kind]) -> int:
    return sum(elements * number for (elements, _), number in kinds.items())


def _states_of_ranks(ask: Ask, place: Place, time_ns: int, coordinates: Coordinates) -> tuple[list[int], int]:
    """Bytes of state of each rank with the same parameters at an instant, and those of the parameters."""
    held: dict[int, Counter[str]] = {}
    of_session = {"session": place.session_id, "rank": None, "device": None}
    after = {"by": "category", "per_rank": True, "time_ns": time_ns}
    for row in ask("ops_at_time", **of_session, **after).to_pylist():
        if row["device_type"] == place.device_type:
            held.setdefault(row["rank"], Counter())[row["group_name"]] += row["live_bytes_at_time"]
    own = held.get(place.rank, Counter())["parameter"]
    where = {row["rank"]: [row[name] for name in SPLIT] for row in coordinates}
    states = [
        each[STATE]
        for rank, each in held.items()
        if where.get(rank) == where.get(place.rank) and abs(each["parameter"] - own) <= NEAR * own
    ]
    return states, own


def _differ(states: Sequence[int]) -> bool:
    return max(states) - min(states) > NEAR * max(states)


def _are_shards(states: Sequence[int], trained: int, most: float) -> bool:
    """Whether ranks hold unequal parts of a state, which add up to a whole one or several.

    A whole one has as many bytes as the parameters that are trained, or several times as many. Where a rank
    holds that much itself, the others lack some for another reason: they train less.

    Args:
        trained: bytes of the parameters.
        most: times as many bytes that an optimizer has of them.
    """
    return (
        min(states) > 0
        and _differ(states)
        and sum(states) <= (1 + NEAR) * most * trained
        and _is_whole(sum(states), trained)
        and not _is_whole(max(states), trained)
    )


def _is_whole(state: int, trained: int) -> bool:
    times = round(state / trained)
    return times > 0 and abs(state - times * trained) <= NEAR * state
