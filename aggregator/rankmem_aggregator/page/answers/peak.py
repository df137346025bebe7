"""The job's highest instant, taken apart: what every rank held then, and what that was.

Stage: page, in the thread of a request. The instant itself is asked for once a state of the session and
kept: of 100 M events it takes a second or two, and every diagram of the view begins with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, get_args

import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.page.as_sql import as_sql
from rankmem_aggregator.page.job_shares import PEAK_S, job_shares, shares_text
from rankmem_aggregator.page.parameters import choice, integer, parameter, text
from rankmem_aggregator.page.reading import Reading
from rankmem_aggregator.page.routes import SessionRoute
from rankmem_aggregator.query.types import BlockBy, Value
from rankmem_aggregator.sql import page_text
from rankmem_protos.devices import by_weight
from rankmem_protos.errors import Code, RankmemError

GROUPS_MAX: Final = 1000
"""Groups of blocks in an answer; what is beyond is added up."""
RANKS_BY: Final = ("rank", "host", "dp", "tp", "pp", "cp", "ep", "job")
DEVICE_TYPE: Final = text(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakAsked:
    """Parameters of ``/peak``."""

    device_type: str | None = parameter(
        DEVICE_TYPE, "type of device; none: accelerators before cpu, the highest first", default=None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldAsked:
    """Parameters of ``/peak_held``."""

    device_type: str | None = parameter(DEVICE_TYPE, "type of device, as in /peak", default=None)
    of: str = parameter(choice(RANKS_BY), "what a bar is; job: all together", default="job")
    by: str = parameter(choice(get_args(BlockBy)), "grouping of blocks within it", default="category")
    groups: int = parameter(
        integer(1, GROUPS_MAX), "groups of blocks told apart; the rest is added up", default=GROUPS_MAX
    )


def peak(reading: Reading, asked: PeakAsked) -> pa.Table:
    """Each rank's share of the job's peak; columns: those of ``sql/page/peak_shares.sql``.

    Facts: device_types, those of the session; device_type, the one of the answer; bound, its row of
    ``job_peak_bound``, None without events; left_out, how many ranks are in no sum, having no clock;
    as_of_ns, the newest event known; running.
    """
    shares, types, chosen = _instant(reading, asked.device_type)
    rows = _ask_with_shares(reading, "peak_shares", shares, device_type=chosen)
    return reading.answer(
        reading.relative(rows, "peak_ns"),
        exact=True,
        source="memory_event",
        device_types=types,
        device_type=chosen,
        bound=_bound(reading, shares, chosen),
        left_out=_left_out(reading, chosen),
        **_as_of(reading),
    )


def peak_held(reading: Reading, asked: HeldAsked) -> pa.Table:
    """What was alive at the job's peak; columns: those of ``sql/page/peak_held.sql``."""
    shares, _, chosen = _instant(reading, asked.device_type)
    rows = _ask_with_shares(
        reading,
        "peak_held",
        shares,
        device_type=chosen,
        of=asked.of,
        by=asked.by,
        most_groups=asked.groups,
    )
    return reading.answer(
        rows,
        exact=True,
        source="allocation_record",
        device_type=chosen,
        left_out=_left_out(reading, chosen),
    )


def chosen_type(types: list[str], wanted: str | None) -> str | None:
    """The device type that is meant, of those of a session in the order of preference.

    Raises:
        RankmemError: NOT_FOUND where the session has no such devices.
    """
    if wanted is None or not types:
        return types[0] if types else None
    if wanted not in types:
        raise RankmemError(
            Code.NOT_FOUND, f"the session has no devices of type {wanted}", f"one of {', '.join(types)}"
        )
    return wanted


def _instant(reading: Reading, wanted: str | None) -> tuple[pa.Table, list[str], str | None]:
    """The rows of job_peak, the device types in them, and the one that is meant."""
    shares = job_shares(reading, reading.session)
    tops = shares.group_by("device_type").aggregate([("job_peak_bytes", "max")]).to_pylist()
    tops.sort(key=lambda row: by_weight(row["device_type"], row["job_peak_bytes_max"]))
    types = [str(row["device_type"]) for row in tops]
    return shares, types, chosen_type(types, wanted)


def _ask_with_shares(reading: Reading, name: str, shares: pa.Table, **parameters: Value) -> pa.Table:
    """The rows of a statement that is given the shares; shown is the one that looks for them."""
    given = {"session": reading.session.session_id, **parameters}
    reading.shown_as(as_sql(page_text(name), {**given, "shares": None}))
    return reading.ask(name, **parameters, shares=shares_text(shares))


def _bound(reading: Reading, shares: pa.Table, chosen: str | None) -> dict[str, Any] | None:
    """How certain the peak is; its instant since the session's start."""
    ours = shares.filter(pc.equal(shares["device_type"], pa.scalar(chosen, pa.string())))
    if not ours.num_rows:
        return None
    (row,) = reading.queries.job_peak_bound(reading.session.session_id, shares=ours).to_pylist()
    del row["job_peak_utc"]
    return {**row, "job_peak_ns": row["job_peak_ns"] - reading.session.origin_ns}


def _left_out(reading: Reading, device_type: str | None) -> int:
    return int(reading.ask("peak_left_out", device_type=device_type)["num_ranks"][0].as_py())


def _as_of(reading: Reading) -> dict[str, Any]:
    last_ns = reading.ask("session_span").to_pylist()[0]["last_ns"]
    origin_ns = reading.session.origin_ns
    return {
        "running": not reading.session.ended,
        "as_of_ns": None if last_ns is None else last_ns - origin_ns,
    }


ROUTES: Final = (
    SessionRoute(path="/peak", parameters=PeakAsked, answer=peak, limit_s=PEAK_S),
    SessionRoute(path="/peak_held", parameters=HeldAsked, answer=peak_held, limit_s=PEAK_S),
)
