"""What would help: remedies as edits of the lives of a steady step's blocks, each with the peak recomputed.

Stage: query, in the reader's process. In: a way to ask named queries. Out: an ``Answer``. The edits are in
:mod:`edits` and :mod:`sharding`; here are the remedies that they make, what each costs, and whether it was
held against real trainings.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rankmem_aggregator.insights import edits
from rankmem_aggregator.insights import whatif_text as text
from rankmem_aggregator.insights.answer import Answer, Ask, Certainty, cannot_tell
from rankmem_aggregator.insights.capacity import usable_on
from rankmem_aggregator.insights.checkpoints import checkpointed
from rankmem_aggregator.insights.edits import Edit, Lives, Step
from rankmem_aggregator.insights.fit_sizes import steady
from rankmem_aggregator.insights.reading import CannotTell
from rankmem_aggregator.insights.sharding import Sharded, already, gradients_and_state, sharded
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
OVER_RANKS: Final = frozenset({"zero1", "zero2", "fsdp"})
"""Remedies that save nothing, or less, where the ranks shard already."""
BEYOND_BOUNDS: Final = frozenset({"state8"})
"""Remedies of which a training held more than the most."""
RANKS: Final = 8
"""Over which is sharded where the recording is of one rank and nobody says how many there are to be."""
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
    replicas = _replicas(ask, place)
    ranks = request.ranks or (replicas if replicas > 1 else RANKS)
    is_steady = chosen in steady(sizes)
    has = already(ask, place, rows) if replicas > 1 else None
    remedies = remedies_of(step, weights, ranks, replicas, state_bits(step, rows), has)
    fit_bytes = request.fit_bytes
    usable = None if fit_bytes is None else usable_on(place.device_type, fit_bytes, None)
    higher = higher_step(sizes, chosen.step, chosen.peak_bytes or 0, usable)
    may_be_sharded = replicas > 1 and has != "parameters"
    return _answer(session_id, place, step, remedies, request, usable, is_steady, has, may_be_sharded, higher)


def _replicas(ask: Ask, place: Place) -> int:
    """Ranks with the same parameters: by the data-parallel coordinate, else all that the job announced."""
    ranks = ask("rank_coordinates", session=place.session_id).to_pylist()
    known = [row["dp"] for row in ranks if row["attempt"] == place.attempt and row["dp"] is not None]
    if known:
        return int(max(known)) + 1
    (row,) = ask("session_row", session=place.session_id).to_pylist()
    return int(row["world_size"] or 1)


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
    replicas: int = 1,
    bits: int = WHOLE_BITS,
    has: Sharded | None = None,
) -> list[Remedy]:
    """All remedies, what costs least first.

    Args:
        weights: bytes of each parameter, by name.
        ranks: over which is sharded.
        replicas: ranks of the recording that hold the same parameters.
        bits: of an element of the recorded optimizer state.
        has: what is sharded already.
    """
    return [
        Remedy(
            name="let-go", what="let go of the last step's tensors before the next forward", costs=FREE,
            edit=edits.let_go_of_last_step,
        ),
        Remedy(
            name="set-to-none", what="zero_grad(set_to_none=True)", costs=FREE,
            edit=edits.gradients_let_go,
        ),
        Remedy(
            name="bucket-view", what="DistributedDataParallel(gradient_as_bucket_view=True)", costs=FREE,
            edit=edits.in_bucket_views if replicas > 1 else _nothing, rivals="gradients",
        ),
        Remedy(
            name="foreach", what="optimizer with foreach=False", costs="a slower optimizer step",
            edit=edits.one_at_a_time,
        ),
        Remedy(
            name="zero1", what=f"shard optimizer state over {ranks} ranks (ZeRO-1)",
            costs="a broadcast a step", rivals="state",
            edit=_nothing if has else edits.scaled({STATE: 1 / ranks}),
        ),
        Remedy(
            name="chunks", what=f"head and loss in {CHUNKS} chunks", costs="the head's forward twice",
            edit=edits.loss_in_chunks(CHUNKS),
        ),
        *_checkpoints(step),
        Remedy(
            name="accumulate", what="half the batch, gradients accumulated over two",
            costs="smaller products", edit=edits.accumulated(2), rivals="gradients",
        ),
        *_over_ranks(weights, ranks, has),
        *_in_fewer_bits(bits),
        Remedy(
            name="zero2", what=f"shard state and gradients over {ranks} ranks (ZeRO-2)",
            costs="gradients reduced to shards", rivals="state", is_measured=False,
            edit=_nothing if has == "parameters" else gradients_and_state(ranks, has_state=not has),
        ),
    ]  # fmt: skip


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


def _over_ranks(weights: Mapping[str, int], ranks: int, has: Sharded | None) -> Iterator[Remedy]:
    """FSDP, where the parameters' bytes are known by name."""
    if weights:
        yield Remedy(
            name="fsdp",
            what=f"shard parameters, gradients and state over {ranks} ranks (FSDP)",
            costs="all parameters gathered twice a step",
            edit=_nothing if has == "parameters" else sharded(ranks, weights, has_state=not has),
            rivals="state",
        )


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
    has: Sharded | None,
    may_be_sharded: bool,
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
    is_unsure = may_be_sharded and not OVER_RANKS.isdisjoint(names)
    is_sure = first["is_measured"] and not is_unsure and BEYOND_BOUNDS.isdisjoint(names)
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
        "sharded": has,
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
        error=text.error(first, may_be_sharded=is_unsure),
        rows=pa.Table.from_pylist(rows, schema=SCHEMA),
        figures=figures,
        notes=text.notes(figures, rows),
        next_commands=(f"rankmem peak --by module --rank {place.rank}",),
    )


def _name(chosen: Sequence[Remedy]) -> str:
    return " + ".join(each.name for each in chosen)
