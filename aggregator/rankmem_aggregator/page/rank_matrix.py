"""What each rank held in each of many equal intervals of time, as a matrix.

Stage: page, in the thread of a request. In: the rows of ``sql/page/heat*.sql``, of which a device has one
where something happened; out: int64 bytes by rank and interval. A cell is the highest of what is known in
it: of the totals whose instant lies in it, and of what was known last before it, for a device keeps what it
holds until its next event. Nothing is known before a process began and after it ended. Of several devices
or attempts of a rank the highest counts.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.page.reading import Reading
from rankmem_protos.summary_tables import LEVEL_WIDTHS_S

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

UNKNOWN: Final = np.iinfo(np.int64).min
"""In a cell of which nothing is known."""
CELLS_MAX: Final = 2_500_000
"""Cells of a matrix, so 250 intervals of 10,000 ranks: 20 MB, and as much for what was last known."""
EVENTS_MAX: Final = 250_000
"""Up to so many events in the range every one is read: about 50 ms of CPU."""
SIZE_PARTS: Final = 64
"""The events of a range are counted by parts of it that are no wider than one of so many."""
BUCKETS_MAX: Final = 700_000
"""Rows of memory_bucket to be read for a matrix where each rank has one a second; beyond it an interval is
at least as wide as a cell."""
ROWS_MAX: Final = 2_500_000
"""Cells of memory_level to be read for a matrix, about: 10,000 ranks over an hour take cells of 16 s."""
NS_PER_S: Final = 1_000_000_000
HISTORY_S_MAX: Final = 64
HISTORY_ROWS_MAX: Final = 100_000
"""What was held before a range is read from cells, the narrowest of which the session has so few: what lies
between the last whole one and the range is read as the range is."""
LEVEL_S: Final = 4
"""The narrowest cells of memory_level; intervals that are shorter are read from memory_bucket."""
COORDINATES: Final = ("dp", "tp", "pp", "cp", "ep")
GROUPS: Final = ("job", "host", *COORDINATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """Equal intervals of a range of time."""

    from_ns: int
    """On the common clock."""
    until_ns: int
    """The last instant of the last one."""
    count: int

    @property
    def unit_ns(self) -> int:
        """By which times are divided, so that nothing overflows: 1 up to some 100 days."""
        return -(-(self.until_ns - self.from_ns + 1) * self.count // 2**62)

    def place(self, times: Integers) -> Integers:
        """The interval of each time; -1 before the range, ``count`` after it. The same as in SQL."""
        unit = self.unit_ns
        inside = np.clip(times, self.from_ns, self.until_ns) - self.from_ns
        found = inside // unit * self.count // ((self.until_ns - self.from_ns) // unit + 1)
        found = np.where(times < self.from_ns, -1, found)
        return np.where(times > self.until_ns, self.count, found)

    def parameters(self) -> dict[str, int]:
        """As SQL takes them."""
        return {
            "from_ns": self.from_ns,
            "until_ns": self.until_ns,
            "num_bins": self.count,
            "unit_ns": self.unit_ns,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the ranks of a session belong and when they lived, by (rank, attempt)."""

    rows: dict[tuple[int, int], dict[str, Any]]

    @classmethod
    def of(cls, reading: Reading) -> Places:
        """Those of a session."""
        rows = reading.share("heat_ranks").to_pylist()
        return cls(rows={(row["rank"], row["attempt"]): row for row in rows})

    def offsets(self) -> tuple[int, int]:
        """The lowest and the highest offset of a host's clock."""
        known = [row["offset_ns"] for row in self.rows.values()] or [0]
        return min(*known, 0), max(*known, 0)

    def history_s(self, now_ns: int) -> int:
        """The width of the cells that say what was held before a range."""
        lives_s = [
            ((row["ended_ns"] or now_ns) - row["started_ns"]) / NS_PER_S
            for row in self.rows.values()
            if row["started_ns"] is not None
        ]
        few = (width for width in LEVEL_WIDTHS_S if sum(lives_s) / width <= HISTORY_ROWS_MAX)
        return min(next(few, HISTORY_S_MAX), HISTORY_S_MAX)

    def lives_text(self, ranks: Collection[int]) -> str:
        """The rows of some ranks as a statement's parameter ``$lives``."""
        columns = ("attempt", "rank", "offset_ns", "started_ns", "ended_ns", "host_name")
        rows = (row for row in self.rows.values() if row["rank"] in ranks)
        return json.dumps([{name: row[name] for name in columns} for row in rows])

    def last(self, rank: int) -> dict[str, Any]:
        """A rank's row, of its last attempt; empty where nothing is known."""
        return self._last().get(rank, {})

    def named(self, ranks: Integers, group: str) -> list[str | None]:
        """The group of each rank: a host's name, a coordinate, or None where it is not known."""
        if group == "job":
            return ["job"] * len(ranks)
        last = self._last()
        column = "host_name" if group == "host" else group
        found = [last.get(int(rank), {}).get(column) for rank in ranks]
        return [None if value is None else str(value) for value in found]

    def _last(self) -> dict[int, dict[str, Any]]:
        return {rank: row for (rank, _), row in sorted(self.rows.items(), key=lambda item: item[0])}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMatrix:
    """Bytes by rank and interval."""

    ranks: Integers
    """Ascending."""
    cells: Integers
    """A row a rank; :data:`UNKNOWN` where nothing is known."""
    exact: bool
    """Every event of the range was read."""
    source: str
    """The table."""

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Which cells are known."""
        found: npt.NDArray[np.bool_] = self.cells != UNKNOWN
        return found


def bins_of(from_ns: int, until_ns: int, count: int, num_tracks: int) -> Bins:
    """As many intervals as were asked for, or as few as keep the matrix and its source within bounds."""
    span_s = (until_ns - from_ns) // NS_PER_S
    most = span_s // LEVEL_S if span_s * num_tracks > BUCKETS_MAX else count
    most = min(count, most, CELLS_MAX // max(1, num_tracks))
    return Bins(from_ns=from_ns, until_ns=until_ns, count=max(1, most))


def held(reading: Reading, places: Places, bins: Bins, device_type: str, figure: str) -> RankMatrix:
    """What ranks held; read event by event where the range has at most :data:`EVENTS_MAX` events."""
    low, high = places.offsets()
    host = {"host_from_ns": bins.from_ns - high, "host_until_ns": bins.until_ns - low}
    asked: dict[str, Any] = {"device_type": device_type, "figure": figure, **bins.parameters()}
    asked["has_offsets"] = (low, high) != (0, 0)
    history_s = places.history_s(bins.until_ns)
    is_long = _has_more_events(reading, device_type, history_s, host)
    size = {} if is_long else _size(reading, bins, device_type, host)
    exact = not is_long and size["events"] <= EVENTS_MAX
    if exact:
        # Also the events before the range, of the buckets that its begin cuts.
        first_ns = min(host["host_from_ns"], size["first_ns"] or host["host_from_ns"])
        rows = reading.show("heat_events", **asked, **host | {"host_from_ns": first_ns}, history_s=history_s)
        source = "memory_event"
    else:
        width_s = width_of(bins, len(places.rows))
        given = {"width_s": width_s, "history_s": history_s}
        rows = reading.show("heat", **asked, **host, **given)
        source = "memory_level" if width_s >= LEVEL_S else "memory_bucket"
    ranks, cells = _filled(rows, bins, places)
    return RankMatrix(ranks=ranks, cells=cells, exact=exact, source=source)


def _size(reading: Reading, bins: Bins, device_type: str, host: dict[str, int]) -> dict[str, Any]:
    """How many events would be read of a range, and when the first of them was."""
    size_s = (bins.until_ns - bins.from_ns) // NS_PER_S // SIZE_PARTS
    (size,) = reading.ask("heat_size", device_type=device_type, width_s=size_s, **host).to_pylist()
    return dict(size)


def _has_more_events(reading: Reading, device_type: str, width_s: int, host: dict[str, int]) -> bool:
    """Whether whole cells within a range have more than :data:`EVENTS_MAX` events; False while more come."""
    if not reading.session.ended:
        return False
    cells = reading.share("heat_spread", device_type=device_type, width_s=width_s)
    is_within = pc.and_(
        pc.greater_equal(cells["first_ns"], host["host_from_ns"]),
        pc.less_equal(cells["last_ns"], host["host_until_ns"]),
    )
    return (pc.sum(cells["events"].filter(is_within)).as_py() or 0) > EVENTS_MAX


def width_of(bins: Bins, num_tracks: int) -> int:
    """The width of the cells to read, in seconds: an interval's, or wider where those would be too many."""
    span_s = (bins.until_ns - bins.from_ns) // NS_PER_S
    least_s = span_s * num_tracks // ROWS_MAX
    if not least_s:
        return span_s // bins.count
    enough = [width for width in LEVEL_WIDTHS_S if width >= least_s] or LEVEL_WIDTHS_S[-1:]
    return max(span_s // bins.count, enough[0])


def headroom(reading: Reading, places: Places, bins: Bins, device_type: str) -> RankMatrix:
    """What ranks could still get by what was known at the end of each interval; the lowest of a rank's."""
    low, high = places.offsets()
    width_s = width_of(bins, len(places.rows))
    rows = reading.show(
        "heat_headroom",
        device_type=device_type,
        **bins.parameters(),
        width_s=width_s,
        history_s=places.history_s(bins.until_ns),
        has_offsets=(low, high) != (0, 0),
        host_from_ns=bins.from_ns - high,
        host_until_ns=bins.until_ns - low,
    )
    bytes_ = pc.negate(rows["headroom_bytes"])
    rows = rows.append_column("peak_bin", rows["bin"]).append_column("last_bytes", bytes_)
    rows = rows.append_column("peak_bytes", bytes_).filter(pc.is_valid(bytes_))
    ranks, cells = _filled(rows, bins, places, carries_into=False)
    cells = np.where(cells == UNKNOWN, UNKNOWN, -cells)
    return RankMatrix(ranks=ranks, cells=cells, exact=width_s < LEVEL_S, source="process_sample")


def medians(matrix: RankMatrix, groups: list[str | None]) -> Floats:
    """By rank and interval the median over the known cells of the rank's group; NaN where there is none."""
    names = {name: number for number, name in enumerate(dict.fromkeys(groups))}
    of_rank = np.array([names[name] for name in groups], np.int64)
    found = np.full(matrix.cells.shape, np.nan)
    for number in range(len(names)):
        mine = np.flatnonzero(of_rank == number)
        found[mine] = _median(matrix.cells[mine])
    return found


def _median(cells: Integers) -> Floats:
    """Of each column, over what is known; as ``numpy.median`` has it."""
    in_order = np.sort(cells, axis=0)  # what is unknown comes first
    num_known = (cells != UNKNOWN).sum(axis=0)
    first = len(cells) - num_known
    column = np.arange(cells.shape[1])
    some = num_known > 0
    lower = np.where(some, first + (num_known - 1) // 2, 0)
    upper = np.where(some, first + num_known // 2, 0)
    middle = (in_order[lower, column].astype(np.float64) + in_order[upper, column]) / 2
    return np.where(some, middle, np.nan)


def _filled(
    rows: pa.Table, bins: Bins, places: Places, *, carries_into: bool = True
) -> tuple[Integers, Integers]:
    """Ranks, and their cells.

    Args:
        rows: in order of rank, attempt, device, and in each of time.
        carries_into: what was known before an interval counts in it, too.
    """
    if not len(rows):
        return np.zeros(0, np.int64), np.zeros((0, bins.count), np.int64)
    rank, attempt = (rows[name].to_numpy().astype(np.int64) for name in ("rank", "attempt"))
    device = rows["device"].combine_chunks().dictionary_encode().indices.to_numpy()
    begins = np.ones(len(rank), bool)
    begins[1:] = (np.diff(rank) != 0) | (np.diff(attempt) != 0) | (np.diff(device) != 0)
    track = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    last_bin, peak_bin = (rows[name].to_numpy().astype(np.int64) + 1 for name in ("bin", "peak_bin"))
    peaks, lasts = (rows[name].to_numpy() for name in ("peak_bytes", "last_bytes"))

    cells = np.full((len(first), bins.count + 2), UNKNOWN, np.int64)  # before, the intervals, after
    carried = cells.copy()
    carried[track, last_bin] = lasts  # of several rows the last one counts
    np.maximum.at(cells, (track, last_bin), lasts)
    np.maximum.at(cells, (track, peak_bin), peaks)
    carried = _forward(carried)
    if carries_into:
        cells[:, 1:] = np.maximum(cells[:, 1:], carried[:, :-1])
    else:
        cells = np.where(cells == UNKNOWN, carried, cells)
    _end(cells, bins, places, rank[first], attempt[first], last_known=np.maximum.reduceat(last_bin, first))
    of_rank = np.flatnonzero(np.diff(rank[first], prepend=rank[0] - 1))
    together: Integers = np.maximum.reduceat(cells[:, 1:-1], of_rank, axis=0)
    return rank[first][of_rank], together


def _forward(values: Integers) -> Integers:
    """Each unknown cell as the last known before it."""
    place = np.where(values == UNKNOWN, 0, np.arange(values.shape[1]))
    np.maximum.accumulate(place, axis=1, out=place)
    return np.take_along_axis(values, place, axis=1)


def _end(
    cells: Integers, bins: Bins, places: Places, ranks: Integers, attempts: Integers, *, last_known: Integers
) -> None:
    """Forgets what is after the end of a process: its bytes are gone."""
    ended = [
        places.rows.get((int(rank), int(attempt)), {}).get("ended_ns")
        for rank, attempt in zip(ranks, attempts, strict=True)
    ]
    over = np.array([each is not None for each in ended])
    times = np.array([0 if each is None else each for each in ended], np.int64)
    final = np.maximum(bins.place(times) + 1, last_known)
    cells[over[:, None] & (np.arange(cells.shape[1]) > final[:, None])] = UNKNOWN
