"""Which blocks a request means: those alive after an event, or those of a range of time.

Stage: page, in the thread of a request; shared by the tables, flame graphs and maps of blocks. In: the
fields ``which``, ``seq``, ``from_ns`` and ``until_ns`` of a route's parameters, and the device; out: the
parameters of its statements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.page.parameters import check_range, choice
from rankmem_aggregator.page.reading import Reading, Track
from rankmem_aggregator.query.types import Value
from rankmem_protos.bounds import NUMBER_MAX
from rankmem_protos.errors import Code, RankmemError

OLDER: Final = "before the recording"
"""The group of blocks older than the recording of which no other is known."""
WHICH: Final = choice(("alive", "made", "freed", "touching", "kept"))
"""``alive``: after an event; ``made``, ``freed``: in a range; ``touching``: alive at any time of it;
``kept``: made in it and not freed by its end, which memray calls leaked, MindStudio Insight unreleased."""
WHICH_DOC: Final = "alive at seq; or made, freed, touching, kept (made and not freed) in the range"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    """The blocks of a device that a request means."""

    track: Track
    which: str
    seq: int | None
    """The event after which they were alive; None for a range."""
    from_ns: int
    until_ns: int
    """On the common clock, both included."""
    at_ns: int
    """On the common clock: the instant of their ages."""
    event_ns: int
    """On the common clock: that of the event; for a range the device's last one."""
    held_bytes: int | None
    """Requested bytes after the event, by the log itself."""

    def parameters(self) -> dict[str, Value]:
        """Of a statement over ``block_of_device``."""
        return {
            "attempt": self.track.attempt,
            "rank": self.track.rank,
            "device": self.track.device,
            "offset_ns": self.track.offset_ns,
            "which": self.which,
            "seq": self.seq,
            "from_ns": self.from_ns,
            "until_ns": self.until_ns,
        }


def lives_of(
    reading: Reading, track: Track, which: str, seq: int | None, from_ns: int | None, until_ns: int | None
) -> Lives:
    """The blocks that are meant: without ``seq`` at the device's peak, without a range of all time.

    Args:
        from_ns, until_ns: since the session's start.

    Raises:
        RankmemError: INVALID for an empty range.
    """
    check_range(from_ns, until_ns)
    origin_ns = reading.session.origin_ns
    alive = which == "alive"
    if alive and seq is None:
        seq = track.peak_seq
    last = reading.ask(
        "instant",
        attempt=track.attempt,
        rank=track.rank,
        device=track.device,
        offset_ns=track.offset_ns,
        seq=seq if alive else None,
    ).to_pylist()
    last_ns = last[0]["time_ns"] if last else origin_ns
    return Lives(
        track=track,
        which=which,
        seq=seq if alive else None,
        from_ns=-NUMBER_MAX if from_ns is None else from_ns + origin_ns,
        until_ns=NUMBER_MAX if until_ns is None else until_ns + origin_ns,
        at_ns=last_ns if alive or until_ns is None else until_ns + origin_ns,
        event_ns=last_ns,
        held_bytes=last[0]["requested_bytes"] if last and alive else None,
    )


def block_is_gone(block: int) -> RankmemError:
    """The refusal for a block that is not among those that are meant."""
    return RankmemError(Code.NOT_FOUND, f"no block {block} here", "ask for the first page, without after")


def named_if_older(groups: pa.Array, blocks: pa.Array) -> pa.Array:
    """The groups of these blocks; :data:`OLDER` where a block has none and is older than the recording."""
    nameless = pc.and_(pc.is_null(groups), pc.less(blocks, 0))
    return pc.if_else(pc.fill_null(nameless, False), OLDER, groups)
