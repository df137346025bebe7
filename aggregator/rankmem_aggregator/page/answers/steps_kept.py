"""What stays from step to step: blocks made in a step and alive steps later, of a rank, some or a group.

Stage: page, in the thread of a request.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

import numpy as np
import pyarrow as pa

from rankmem_aggregator.page.answers.flame import RANKS_AT_ONCE
from rankmem_aggregator.page.answers.peak import DEVICE_TYPE
from rankmem_aggregator.page.answers.steps import (
    BINS_MAX,
    cells_of,
    device_type_of,
    growing,
    limit_s,
    warm_up_end,
)
from rankmem_aggregator.page.parameters import DEVICE, RANK, choice, integer, integers, parameter
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.page.side_points import devices_of
from rankmem_aggregator.page.sides import ranks_of
from rankmem_aggregator.query.types import BlockBy
from rankmem_protos.bounds import NUMBER_MAX, RANKS_MAX
from rankmem_protos.errors import Code, RankmemError

KEEP_MAX: Final = 1_000_000
KEPT_S: Final = 30.0
"""All blocks of 64 ranks are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKeptAsked:
    """Parameters of ``/step_kept``: of ``rank``, of ``ranks``, or of ``group``."""

    rank: int | None = parameter(
        RANK, "global rank; none of the three: the one that leaks fastest", default=None
    )
    ranks: tuple[int, ...] = parameter(
        integers(0, RANKS_MAX, at_most=RANKS_AT_ONCE), "several ranks, added up", default=()
    )
    group: tuple[str, str] | None = parameter(
        ranks_of, "ranks as in a side of /diff, added up: all, or pp=3, host=node-1", default=None
    )
    attempt: int | None = parameter(RANK, "which start of the workers", default=None)
    device: str | None = parameter(DEVICE, "device type and index, of rank", default=None)
    device_type: str | None = parameter(DEVICE_TYPE, "type of device, where rank is not given", default=None)
    by: str = parameter(choice(get_args(BlockBy)), "grouping of blocks", default="line")
    keep: int = parameter(integer(1, KEEP_MAX), "steps that a block stays, at least", default=4)
    since: int | None = parameter(
        integer(0, NUMBER_MAX // 2),
        "of blocks made in this step or later; none: after the warm-up",
        default=None,
    )


def step_kept(reading: Reading, asked: StepKeptAsked) -> pa.Table:
    """What stays from step to step; columns: those of ``sql/page/step_kept.sql``.

    Facts: ranks, how many; rank, attempt, device, host_name, of several ranks that of the first, and rank
    None; grows_most, whether the rank leaks and was chosen for that; keep, since; last_step, None
    without steps.
    """
    if sum((asked.rank is not None, bool(asked.ranks), asked.group is not None)) > 1:
        raise RankmemError(
            Code.INVALID,
            "what stays is of one rank, of several or of a group",
            "give one of rank, ranks and group",
        )
    tracks, grows_most = _tracks(reading, asked)
    first = reading.track(tracks[0]["rank"], tracks[0]["attempt"], tracks[0]["device"])
    device_type = first.device.split(":")[0]
    known = reading.kept(
        f"steps {first.attempt} {device_type}", lambda: _steps(reading, first.attempt, device_type)
    )
    numbers = known["first_step"].to_numpy()
    has_steps = len(numbers) > 0
    since = asked.since if asked.since is not None else warm_up_end(numbers)
    rows = reading.show(
        "step_kept",
        points=json.dumps(tracks),
        rank_first=tracks[0]["rank"],
        rank_last=tracks[-1]["rank"],
        by=asked.by,
        keep=asked.keep,
        since=since,
    )
    return reading.answer(
        rows,
        exact=True,
        source="allocation_record",
        ranks=len(tracks),
        rank=first.rank if len(tracks) == 1 else None,
        attempt=first.attempt,
        device=first.device,
        host_name=first.host_name,
        grows_most=grows_most,
        keep=asked.keep,
        since=since,
        last_step=int(known["last_step"][0].as_py()) if has_steps else None,
    )


def _steps(reading: Reading, attempt: int, device_type: str) -> pa.Table:
    """The first step of each part of an attempt, at most BINS_MAX, and in each row its last step of all."""
    cells = reading.ask("step_cells", device_type=device_type, attempt=attempt, num_bins=BINS_MAX)
    numbers = np.unique(cells["first_step"].to_numpy())
    last = int(cells["last_step"].to_numpy().max()) if len(numbers) else 0
    return pa.table({"first_step": numbers, "last_step": np.full(len(numbers), last)})


def _tracks(reading: Reading, asked: StepKeptAsked) -> tuple[Sequence[dict[str, Any]], bool]:
    """attempt, rank and device of each rank that is meant, in order; whether one was chosen for its growth.

    Raises:
        RankmemError: NOT_FOUND, or INVALID for a group of more than RANKS_AT_ONCE.
    """
    if not asked.ranks and asked.group is None:
        rank, attempt, device, grows_most = asked.rank, asked.attempt, asked.device, False
        if rank is None:
            rank, attempt, device, grows_most = growing(reading, asked.device_type, asked.attempt)
        track = reading.track(rank, attempt, device)
        return [{"attempt": track.attempt, "rank": track.rank, "device": track.device}], grows_most
    device_type = device_type_of(reading, asked.device_type)
    cells = cells_of(reading.ask("step_cells", device_type=device_type, attempt=asked.attempt, num_bins=1))
    wanted = set(asked.ranks)
    if asked.group is not None:
        kind, value = asked.group
        wanted = {row["rank"] for row in devices_of(reading, kind, value, device_type)}
    tracks = [track for track in cells.tracks if track["rank"] in wanted]
    if missing := set(asked.ranks) - {track["rank"] for track in tracks}:
        raise _no_steps(f"rank {min(missing)}", asked.attempt)
    if not tracks:
        raise _no_steps("the group", asked.attempt)
    if len(tracks) > RANKS_AT_ONCE:
        raise RankmemError(
            Code.INVALID,
            f"the group has {len(tracks)} ranks, more than the {RANKS_AT_ONCE} of an answer",
            "name a smaller group, or some of them by ranks=",
        )
    return tracks, False


def _no_steps(who: str, attempt: int | None) -> RankmemError:
    when = f" in attempt {attempt}" if attempt is not None else ""
    return RankmemError(Code.NOT_FOUND, f"{who} has no steps{when}", "/step_heat has the ranks with steps")


def _limit_s(asked: StepKeptAsked) -> float:
    return KEPT_S if asked.ranks or asked.group is not None else limit_s(asked)


ROUTES: Final = (
    SessionRoute(path="/step_kept", parameters=StepKeptAsked, answer=step_kept, limit_of=_limit_s),
)
