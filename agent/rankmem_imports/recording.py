"""The interface between readers of other tools' recordings and the import.

Stage: readers, before import; the process of ``rankmem import``, never the trainer. In: a path that a
reader recognised by its content. Out: one :class:`RankRecording` for each rank in it, whose parts are rows
of the database's own tables, in the order of the log. A reader streams: it never holds a whole recording
where the format lets it be read piece by piece. Facts missing in a source are None or ``unknown``,
never made up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem_ship.pairing.fact_rows import Rows


class NothingHereError(RankmemError):
    """A whole file of a known format that has nothing to store, such as a trace without memory events. In a
    folder it is skipped like a file of no format; named by itself it is an error."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(Code.INVALID, message, hint)


class Identity(NamedTuple):
    """The rank that rows belong to: the first columns of most tables."""

    session_id: str
    attempt: int
    rank: int


class Part(NamedTuple):
    """Rows of one slice of a rank's log; one message on the wire, unless it is too large for one."""

    rows: Sequence[Rows]
    """(table, record batch) with exactly the schemas of ``rankmem_protos.tables``, no table twice, all but
    session, host_info and rank_info, which import writes from :class:`RankFacts` and :class:`Closing`."""
    sequence_last: int
    """Last position of the log that the rows cover: ``seq`` of the last event, at least. It does not fall;
    a part may leave it where it was (rows without events, which wait for the next part's: up to 1 MiB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """A recording's facts on its rank; None where unknown."""

    rank: int | None = None
    """Otherwise the place among the files, or what ``--rank-from`` finds in the path."""
    local_rank: int | None = None
    world_size: int | None = None
    parallel_sizes: Mapping[str, int] = field(default_factory=dict)
    """Size of each parallel dimension (dp, tp, pp, cp, ep) that the source states."""
    coordinates: Mapping[str, int] = field(default_factory=dict)
    """The rank's own place in each dimension where it is stated."""
    host_uid: str | None = None
    host_name: str | None = None
    pid: int | None = None
    started_ns: int | None = None
    """UTC, as for the whole database; None where the source has no wall clock."""
    ended_ns: int | None = None
    torch_version: str | None = None
    python_version: str | None = None
    gpu_driver: str | None = None
    command: str | None = None
    job: str | None = None
    """A name of the job that is the same in the files of all its ranks; files with another one are another
    session. None: files of one format and one command line are one job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """Facts that are known after the last part."""

    events: int
    events_lost: int = 0
    unexplained_bytes: int | None = None
    """Replayed requested bytes minus the source's figure at its end; None where it has none."""
    complete: bool = False
    """Every event since the process started is included, and the replay equals the source's own figure."""
    remarks: tuple[str, ...] = ()
    """Inexact results, a sentence each, for the summary of the import."""


class RankRecording(Protocol):
    """One rank's part of a recording."""

    @property
    def source(self) -> Path:
        """The file it is read from, for errors and for the session's command."""

    @property
    def facts(self) -> RankFacts:
        """Known before the parts are read."""

    def parts(self, identity: Identity) -> Iterator[Part]:
        """The rank's rows, in log order.

        Raises:
            RankmemError: INVALID with file and place where the recording breaks off or contradicts itself.
        """

    def closing(self) -> Closing:
        """After the last part."""
