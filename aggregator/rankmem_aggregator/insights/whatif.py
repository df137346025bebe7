"""What would help: remedies as edits of the lives of a steady step's blocks, each with the peak recomputed.

Stage: query, in the reader's process. In: a way to ask named queries. Out: an ``Answer``. The edits are in
:mod:`edits` and :mod:`sharding`; here are the remedies that they make, what each costs, and whether it was
held against real trainings.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rankmem_aggregator.insights import edits
from rankmem_aggregator.insights import whatif_text as text
from rankmem_aggregator.insights.already_sharded import (
    LEVELS,
    SPLIT,
    STATES_MAX,
    WHOLE,
    Already,
    Coordinates,
    Sharded,
    already,
    coordinates_of,
    ends_of,
    optimizers_of,
)
from rankmem_aggregator.insights.answer import Answer, Ask, Certainty, cannot_tell
from rankmem_aggregator.insights.capacity import usable_on
from rankmem_aggregator.insights.checkpoints import checkpointed
from rankmem_aggregator.insights.chunks import loss_in_chunks
from rankmem_aggregator.insights.edits import Edit, Lives, Step
from rankmem_aggregator.insights.fit_sizes import steady
from rankmem_aggregator.insights.parts import accumulated
from rankmem_aggregator.insights.reading import CannotTell
from rankmem_aggregator.insights.sharding import gradients_and_state, not_kept_whole, sharded
from rankmem_aggregator.insights.state_bounds import WHOLE_BITS, state_least, state_most
from rankmem_aggregator.insights.windows import (
    NEVER,
    STATE,
    Place,
    higher_step,
    place_of,
    read_window,
    refuse_without_phases,
    step_sizes,
)
from rankmem_protos.errors import Code, RankmemError

CHUNKS: Final = 8
UNSURE: Final = frozenset({"state8", "let-go"})
"""Remedies of which a training held more than the most, or may: what is still used cannot be seen."""
DDP: Final = "DistributedDataParallel"
"""The class whose buckets gradients may be views of."""
ADAMS: Final = frozenset({"Adam", "AdamW", "NAdam", "RAdam"})
"""Optimizers of which is known what they make for one parameter (torch.optim 2.13)."""
SCRATCH_MAX: Final = 3
"""Times the largest parameter that others with foreach make at most for one, as Rprop does; ASGD makes next
to nothing."""
RANKS: Final = 8
"""Over which is sharded where the recording is of one rank and nobody says how many there are to be."""
CLEARS: Final = "zero_grad(set_to_none=True)"
CLEARS_MORE: Final = f"{CLEARS} also for the parameters whose gradients stay"
"""Where those of others go: of parameters in no optimizer, say, or in one whose are set to zero."""
FREE: Final = "nothing"
"""What a remedy costs that costs nothing."""
FAMILIES_MAX: Final = 3
"""Of siblings, whose checkpoints are tried each."""
TOGETHER_MAX: Final = 8
"""Remedies of which all sets are tried."""
FINDING_SHARE: Final = 0.02
"""Of the peak: what saves at least this is a finding."""

SCHEMA: Final = pa.schema(
    [
        ("remedy", pa.string()),
        ("what", pa.string()),
        ("saved_bytes", pa.int64()),
        ("peak_after_bytes", pa.int64()),
        ("peak_after_least_bytes", pa.int64()),
        ("phase_after", pa.string()),
        ("costs", pa.string()),
        ("is_measured", pa.bool_()),
        ("fits", pa.bool_()),
    ]
)
"""The rows of the answer: single remedies, what saves most first; with fit_bytes also the set of fewest
changes that fits, before them. remedy: short names, joined by " + "; peak_after_least_bytes: less than
peak_after_bytes, which is then the most, where the recording does not tell when a block is let go of, or how
another optimizer computes; phase_after: in which the peak is then, at most; is_measured: whether the edit was
held against trainings with the change; fits: NULL without fit_bytes, or where that depends on what the
recording does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change of the training."""

    name: str
    what: str
    costs: str
    edit: Edit
    is_measured: bool = True
    rivals: str = ""
    """A word for what it excludes: two remedies with the same are never tried together."""
    least: Edit | None = None
    """What it does at the best, where the recording leaves that open; None: the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked."""

    fit_bytes: int | None = None
    """Of the device that it should fit in."""
    ranks: int | None = None
    """Over which is sharded; None: those of the recording, or RANKS."""
    rank: int | None = None
    attempt: int | None = None
    device: str | None = None


def whatif_of(ask: Ask, session_id: str, request: Request) -> Answer:
    """What remedies save; columns of its rows: :data:`SCHEMA`.

    Raises:
        RankmemError: INVALID for fewer than two ranks.
    """
    if request.ranks is not None and request.ranks < 2:
        raise RankmemError(Code.INVALID, f"over {request.ranks} rank nothing is sharded", "--ranks 8")
    try:
        place = place_of(ask, session_id, rank=request.rank, attempt=request.attempt, device=request.device)
        sizes = step_sizes(ask, place)
        named = [size for size in sizes if size.is_named]
        chosen = max(steady(sizes), key=lambda size: size.to_seq, default=named[-1])
        window = read_window(ask, place, chosen)
        refuse_without_phases(window)
        step = Step.of_window(window)
    except CannotTell as reason:
        return cannot_tell("whatif", session_id, str(reason), SCHEMA, next_commands=("rankmem steps",))
    last = ask("weights", session=session_id, rank=place.rank).to_pylist()
    rows = [row for row in last if row["attempt"] == place.attempt]
    weights = {row["name"]: row["size_bytes"] or 0 for row in rows}
    coordinates = coordinates_of(ask, place)
    replicas = replicas_of(ask, place, coordinates)
    ranks = request.ranks or (replicas if replicas > 1 else RANKS)
    is_steady = chosen in steady(sizes)
    ends = ends_of(ask, window)
    has = already(ask, window, rows, coordinates, replicas, ends)
    has_buckets = replicas > 1 and _may_be_ddp(ask, place)
    bits, optimizers = state_bits(step, rows), optimizers_of(ends)
    remedies = remedies_of(step, weights, ranks, has_buckets, bits, has, optimizers)
    fit_bytes = request.fit_bytes
    usable = None if fit_bytes is None else usable_on(place.device_type, fit_bytes, None)
    higher = higher_step(sizes, chosen.step, chosen.peak_bytes or 0, usable)
    return _answer(session_id, place, step, remedies, request, usable, is_steady, has, higher)


def replicas_of(ask: Ask, place: Place, coordinates: Coordinates) -> int:
    """Ranks with the same parameters: by the data-parallel and context-parallel coordinates, else what other
    coordinates leave of all that the job announced."""

    def parts(*names: str) -> int:
        return math.prod(1 + max((row[name] or 0 for row in coordinates), default=0) for name in names)

    (row,) = ask("session_row", session=place.session_id).to_pylist()
    world_size = row["world_size"] or 1
    if any(row["dp"] is not None for row in coordinates):
        # Some count the ranks of cp among those of dp.
        return max(parts("dp"), min(parts("dp", "cp"), world_size // parts("tp", "pp")))
    return max(world_size // parts(*SPLIT), 1)


def _may_be_ddp(ask: Ask, place: Place) -> bool:
    """Whether a module is DDP's, or none is known; other engines' copies of gradients are no buckets."""
    where = {"session": place.session_id, "attempt": place.attempt, "rank": place.rank}
    classes = [row["class"] for row in ask("module_classes", **where).to_pylist()]
    return not classes or any(each.endswith(DDP) for each in classes)


def state_bits(step: Step, weights: Sequence[Mapping[str, Any]]) -> int:
    """Bits of an element of the optimizer's state: 16 if it is as large as parameters of 16 bits, else 32.

    Args:
        weights: ``dtype`` and ``size_bytes`` of each parameter.
    """
    halves = [
        row["size_bytes"] for row in weights if row["size_bytes"] and (row["dtype"] or "").endswith("float16")
    ]
    state = step.window.bytes[step.category == STATE]
    as_large, twice = (state[np.isin(state, np.array(halves, np.int64) * times)].sum() for times in (1, 2))
    return WHOLE_BITS // 2 if as_large > twice else WHOLE_BITS


def remedies_of(
    step: Step,
    weights: Mapping[str, int],
    ranks: int,
    has_buckets: bool = False,
    bits: int = WHOLE_BITS,
    has: Already = WHOLE,
    optimizers: Set[str] = ADAMS,
) -> list[Remedy]:
    """All remedies, what costs least first.

    Args:
        weights: bytes of each parameter, by name.
        ranks: over which is sharded.
        has_buckets: gradients that are made beside others may be DDP's buckets.
        bits: of an element of the recorded optimizer state.
        has: what is sharded already, surely and at most.
        optimizers: the classes of those that stepped.
    """
    return [
        Remedy(
            name="let-go", what="let go of the last step's tensors before the next forward", costs=FREE,
            edit=edits.let_go_of_left_over, least=edits.let_go_of_last_step,
        ),
        Remedy(
            name="set-to-none", what=CLEARS_MORE if edits.lets_gradients_go(step) else CLEARS, costs=FREE,
            edit=edits.gradients_let_go,
        ),
        Remedy(
            name="bucket-view", what="DistributedDataParallel(gradient_as_bucket_view=True)", costs=FREE,
            edit=edits.in_bucket_views if has_buckets else _nothing, rivals="gradients",
        ),
        _foreach(optimizers),
        _over_ranks(
            "zero1", f"shard optimizer state over {ranks} ranks (ZeRO-1)", "a broadcast a step", has,
            does="state", edit=lambda _: edits.scaled({STATE: 1 / ranks}),
        ),
        Remedy(
            name="chunks", what=f"head and loss in {CHUNKS} chunks", costs="the head's forward twice",
            edit=loss_in_chunks(CHUNKS),
        ),
        *_checkpoints(step),
        Remedy(
            name="accumulate", what="half the batch, gradients accumulated over two",
            costs="smaller products", rivals="gradients",
            edit=accumulated(2), least=accumulated(2, copies_shrink=True),
        ),
        *_fsdp(weights, ranks, has),
        *_in_fewer_bits(bits),
        _over_ranks(
            "zero2", f"shard state and gradients over {ranks} ranks (ZeRO-2)", "gradients reduced to shards",
            has, does="gradients", edit=lambda now: gradients_and_state(ranks, has_state=now == "nothing"),
            is_measured=False,
        ),
    ]  # fmt: skip


def _foreach(optimizers: Set[str]) -> Remedy:
    """At most nothing, where it is not known that they have foreach: LBFGS and Muon have not."""
    is_adam, is_known = (bool(optimizers) and optimizers <= each for each in (ADAMS, STATES_MAX.keys()))
    return Remedy(
        name="foreach",
        what="optimizer with foreach=False",
        costs="a slower optimizer step",
        edit=edits.one_at_a_time(None if is_adam else SCRATCH_MAX) if is_known else _nothing,
        least=None if is_adam else edits.one_at_a_time(0),
    )


def _checkpoints(step: Step) -> Iterator[Remedy]:
    for number, family in enumerate(step.families[:FAMILIES_MAX]):
        yield Remedy(
            name="checkpoint" if not number else f"checkpoint-{number + 1}",
            what=f"checkpoint {family[0]} … {family[-1]}",
            costs="their forward twice",
            edit=checkpointed(family),
            least=checkpointed(family, soonest=True),
        )


def _in_fewer_bits(recorded_bits: int) -> Iterator[Remedy]:
    """Optimizer state in 16 and 8 bits, and in none of the device."""
    for name, what, costs, bits in (
        ("state16", "optimizer state in 16 bits", "precision", 16),
        ("state8", "optimizer state in 8 bits", "precision", 8),
        ("offload", "optimizer state on the host", "a step over the bus", 0),
    ):
        yield Remedy(
            name=name,
            what=what,
            costs=costs,
            edit=state_most(bits, recorded_bits),
            least=state_least(bits, recorded_bits),
            rivals="state",
        )


def _fsdp(weights: Mapping[str, int], ranks: int, has: Already) -> Iterator[Remedy]:
    """Where the parameters' bytes are known by name."""
    if weights:
        what = f"shard parameters, gradients and state over {ranks} ranks (FSDP)"
        is_kept_whole = has.surely == "gradients"
        yield _over_ranks(
            "fsdp", what, "all parameters gathered twice a step", has, does="parameters",
            edit=lambda now: not_kept_whole if is_kept_whole else sharded(ranks, weights, now == "nothing"),
            is_measured=has.maybe != "gradients" and not is_kept_whole,
        )  # fmt: skip


def _over_ranks(
    name: str,
    what: str,
    costs: str,
    has: Already,
    *,
    does: Sharded,
    edit: Callable[[Sharded], Edit],
    is_measured: bool = True,
) -> Remedy:
    """What shards: nothing again, and at most as much as is whole where that cannot be told.

    Args:
        does: what it shards.
        edit: by what is sharded now.
    """
    at_most, at_least = (
        edit(now) if LEVELS.index(now) < LEVELS.index(does) else _nothing for now in (has.maybe, has.surely)
    )
    is_known = has.surely == has.maybe
    may_be_done = at_most is _nothing is not at_least
    return Remedy(
        name=name,
        what=f"{what[:-1]}{text.IF_NOT_DONE})" if may_be_done else what,
        costs=costs,
        edit=at_most if is_known else _worse(at_most, at_least),
        least=None if is_known else at_least,
        rivals="state",
        is_measured=is_measured,
    )


def _worse(one: Edit, other: Edit) -> Edit:
    """That of two with the higher peak; gathered parameters may be more than what is saved."""

    def edit(step: Step, lives: Lives) -> Lives:
        return max(one(step, lives), other(step, lives), key=lambda after: after.peak()[0])

    return edit


def _nothing(step: Step, lives: Lives) -> Lives:
    return lives


def _row(
    step: Step, chosen: Sequence[Remedy], lives: Lives, peak: float, usable: int | None
) -> dict[str, Any]:
    after, at = lives.peak()
    least = _least(step, chosen, after)
    return {
        "remedy": " + ".join(each.name for each in chosen),
        "what": "; ".join(each.what for each in chosen),
        "saved_bytes": round(peak - after),
        "peak_after_bytes": round(after),
        "peak_after_least_bytes": round(least),
        "phase_after": _phase(step, lives, at),
        "costs": "; ".join(dict.fromkeys(each.costs for each in chosen)),
        "is_measured": all(each.is_measured for each in chosen),
        "fits": None if usable is None or least <= usable < after else after <= usable,
    }


def _least(step: Step, chosen: Sequence[Remedy], most: float) -> float:
    """The peak after the remedies at the best."""
    if not any(each.least for each in chosen):
        return most
    lives = step.lives()
    for each in chosen:
        lives = (each.least or each.edit)(step, lives)
    return min(lives.peak()[0], most)


def _phase(step: Step, lives: Lives, at: float) -> str:
    """The phase of the last block that was made when the peak was reached."""
    made = lives.kept((lives.born <= at) & (lives.born > step.window.begin) & (lives.born < NEVER))
    if not len(made.of):
        return "other"
    return str(step.phase[made.of[int(made.born.argmax())]]) or "other"


def smallest_set(
    step: Step, remedies: Sequence[Remedy], usable: int
) -> tuple[tuple[Remedy, ...], Lives] | None:
    """The set of fewest remedies with which the peak fits; of equals the cheapest, as they are ordered.

    Sets are tried by their size. A remedy that changes nothing beside the others of a set ends all sets that
    begin so: without it they are smaller, and were tried.

    Args:
        remedies: TOGETHER_MAX at most, what costs least first.
        usable: less than the peak as it is.
    """
    known: dict[tuple[int, ...], Lives] = {(): step.lives()}
    for count in range(1, len(remedies) + 1):
        for places in itertools.combinations(range(len(remedies)), count):
            chosen = tuple(remedies[place] for place in places)
            rivals = [each.rivals for each in chosen if each.rivals]
            if len(set(rivals)) < len(rivals):
                continue
            before = known.get(places[:-1])
            if before is None:
                continue
            lives = chosen[-1].edit(step, before)
            if lives.is_as(before):
                continue
            known[places] = lives
            if lives.peak()[0] <= usable:
                return chosen, lives
    return None


def _answer(
    session_id: str,
    place: Place,
    step: Step,
    remedies: Sequence[Remedy],
    request: Request,
    usable: int | None,
    is_steady: bool,
    has: Already,
    higher: tuple[int, int] | None,
) -> Answer:
    lives = step.lives()
    peak, at = lives.peak()
    highest = max(peak, higher[1] if higher else 0)
    alone = [(each, _row(step, (each,), each.edit(step, lives), peak, usable)) for each in remedies]
    rows = sorted((row for _, row in alone), key=lambda row: -row["saved_bytes"])
    found = None
    if usable is not None and peak > usable:
        savers = sorted(
            (each for each, row in alone if row["saved_bytes"] > 0 and each.is_measured),
            key=lambda each: next(-row["saved_bytes"] for row in rows if row["remedy"] == each.name),
        )[:TOGETHER_MAX]
        found = smallest_set(step, [each for each in remedies if each in savers], usable)
        if found is not None and len(found[0]) > 1:
            rows.insert(0, _row(step, found[0], found[1], peak, usable))
    first = rows[0] if found is None else next(r for r in rows if r["remedy"] == _name(found[0]))
    names = frozenset(first["remedy"].split(" + "))
    is_sure = first["is_measured"] and UNSURE.isdisjoint(names)
    certainty: Certainty = "predicted" if is_sure else "suspected"
    figures = {
        "attempt": place.attempt,
        "rank": place.rank,
        "device": place.device,
        "step": step.window.size.step,
        "is_steady": is_steady,
        "num_blocks": len(step.window),
        "peak_bytes": round(peak),
        "peak_phase": _phase(step, lives, at),
        "sharded": has.known,
        "higher_step": higher and higher[0],
        "higher_step_bytes": higher and higher[1],
        "fit_bytes": request.fit_bytes,
        "usable_bytes": usable,
        "fits_as_it_is": None if usable is None else bool(highest <= usable),
        "smallest_set": None if found is None else [each.name for each in found[0]],
    }
    helps = first["saved_bytes"] >= peak * FINDING_SHARE
    return Answer(
        question="whatif",
        session_id=session_id,
        verdict="finding" if (helps if usable is None else highest > usable) else "fine",
        certainty=certainty,
        sentence=text.sentence(place.name, [first, *rows], figures),
        error=text.error(first),
        rows=pa.Table.from_pylist(rows, schema=SCHEMA),
        figures=figures,
        notes=text.notes(figures, rows),
        next_commands=(f"rankmem peak --by module --rank {place.rank}",),
    )


def _name(chosen: Sequence[Remedy]) -> str:
    return " + ".join(each.name for each in chosen)
