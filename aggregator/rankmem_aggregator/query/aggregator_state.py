"""The state of an aggregator: the reply of ``Query.Status`` as a value.

Stage: query, in the reader's process. In: the message; out: plain figures for display.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rankmem_protos.query_pb2 import (
        StatusReply,
    )  # loads protobuf, which one who reads a file does not need


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorState:
    """Figures of one aggregator; times are ns since 1970 on its clock."""

    database_path: str
    version: str
    not_serving_reason: str
    """Why batches wait; empty while they are stored."""
    started_ns: int
    now_ns: int
    events: int
    """Stored since its start; likewise batches_refused, commit_retries, sessions_pruned, messages_damaged."""
    batches_refused: int
    commit_retries: int
    sessions_pruned: int
    messages_damaged: int
    """From shippers, with a wrong checksum; they were sent again."""
    ranks_alive: int
    lag_ns: int
    """The longest among the ranks alive, at their last batch."""
    streams: int
    """Shippers connected."""
    queue_batches: int
    queue_bytes: int
    database_bytes: int
    log_bytes: int
    disk_free_bytes: int
    rss_bytes: int
    unstored_since_ns: int
    """Arrival of the oldest batch that its answers have and the lake's files do not; 0: there is none."""

    @classmethod
    def of(cls, reply: StatusReply) -> Self:
        """The reply as a value."""
        return cls(
            database_path=reply.database_path,
            version=reply.rankmem_version,
            not_serving_reason=reply.not_serving_reason,
            started_ns=reply.started_ns,
            now_ns=reply.now_ns,
            events=reply.events_committed,
            batches_refused=reply.batches_refused,
            commit_retries=reply.commit_retries,
            sessions_pruned=reply.sessions_pruned,
            messages_damaged=reply.messages_damaged,
            ranks_alive=reply.ranks_alive,
            lag_ns=reply.lag_ns,
            streams=reply.streams_open,
            queue_batches=reply.batches_queued,
            queue_bytes=reply.queue_bytes,
            database_bytes=reply.database_bytes,
            log_bytes=reply.log_bytes,
            disk_free_bytes=reply.disk_free_bytes,
            rss_bytes=reply.rss_bytes,
            unstored_since_ns=reply.unstored_since_ns,
        )
