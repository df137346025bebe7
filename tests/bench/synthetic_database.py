"""Fills the real tables with events of ranks (64, unless told) that never ran, in SQL, inside DuckDB.

Stage: in the place of ingest. Comes in: an open DuckDB connection with rankmem's tables; goes out: rows
of memory_event (in the order in which batches of many ranks interleave), memory_bucket, rank_info,
host_info and session; of large jobs, on request, the buckets alone. Each rank's total after event i is a
closed formula, so any part can be made without the ones before, in a stream, at disk speed; and every step
repeats the same curve, as training does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import duckdb

from rankmem_aggregator.store import schema
from rankmem_aggregator.store.packing import packed_rows
from rankmem_protos.tables import BUCKET_RECORDS, TABLES

RANKS: Final = 64
RANKS_PER_HOST: Final = 8
BATCH_EVENTS: Final = 8192  # of one rank in a row: what a shipper sends at once
EVENT_NS: Final = 100_000  # 10,000 events a second and rank, 640,000 over all ranks
SESSION: Final = "01BENCHBENCH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the ranks' curves look like."""

    name: str
    step_events: int = 2048
    step_skew_ns: int = 2_500_000
    """Ranks reach the same point of a step this far apart, at most: what collectives leave."""
    leak_bytes: int = 0
    """What every fourth rank gains in a step."""


STEADY: Final = Shape(name="steady")
DRIFTING: Final = Shape(name="drifting", leak_bytes=8 * 2**20)


_CURVE = """
CREATE OR REPLACE TEMP MACRO synthetic_total(rank, seq, step_events, leak) AS
    (1000 + rank % 8 * 50)
    * (4000000 + 20000 * least(seq % step_events, step_events - 1 - seq % step_events)
       + CAST(hash(seq % step_events) % 8000 AS BIGINT))
    + CASE WHEN rank % 4 = 0 THEN leak * (seq // step_events) ELSE 0 END
"""

_EVENTS = """
WITH numbered AS (
    SELECT CAST((n // $batch) % $ranks AS INTEGER) AS rank,
           (n // ($batch * $ranks)) * $batch + n % $batch AS seq
    FROM range(CAST($first AS BIGINT), CAST($last AS BIGINT)) AS r(n)
), totals AS (
    SELECT rank, seq, seq // $step_events AS step,
           synthetic_total(rank, seq, $step_events, $leak) AS total,
           CASE WHEN seq = 0 THEN 0
                ELSE synthetic_total(rank, seq - 1, $step_events, $leak) END AS total_before
    FROM numbered
)
SELECT $session AS session_id, 0 AS attempt, rank, 'cuda:' || (rank % 8) AS device, seq,
       CAST(1800000000000000000 + seq * $event_ns + step * (2 * $skew) + hash(rank, step) % $skew
            + hash(rank, seq) % $event_ns AS BIGINT) AS time_ns,
       CASE WHEN total >= total_before THEN 'alloc' ELSE 'free_completed' END AS action,
       CAST(140000000000000 + hash(rank, seq % $step_events) % 16777216 * 512 AS BIGINT) AS address,
       abs(total - total_before) AS size_bytes,
       0 AS stream, NULL AS pool, 'pytorch' AS component, total AS requested_bytes,
       NULL AS allocated_bytes, NULL AS active_bytes, 42949672960 AS reserved_bytes,
       seq AS allocation_id, seq // 3 AS call_id, 1 AS thread
FROM totals
"""

_BUCKETS = """
SELECT session_id, attempt, rank, device, time_ns // 1000000000 * 1000000000 AS bucket_ns,
       min(seq) AS seq_first, max(seq) AS seq_last, min(time_ns) AS first_ns, max(time_ns) AS last_ns,
       count(*) AS events, max(requested_bytes) AS requested_peak_bytes,
       arg_max(time_ns, requested_bytes) AS requested_peak_ns,
       arg_max(seq, requested_bytes) AS requested_peak_seq,
       arg_max(requested_bytes, seq) AS requested_last_bytes,
       NULL::BIGINT AS allocated_peak_bytes, NULL::BIGINT AS allocated_last_bytes,
       NULL::BIGINT AS active_peak_bytes, NULL::BIGINT AS active_last_bytes,
       max(reserved_bytes) AS reserved_peak_bytes, arg_max(reserved_bytes, seq) AS reserved_last_bytes
FROM memory_event
GROUP BY session_id, attempt, rank, device, time_ns // 1000000000, seq // $records
ORDER BY seq_first // $batch, rank, seq_first
"""

_RANKS = """
INSERT INTO rank_info BY NAME
SELECT session_id, attempt, rank, rank % $per_host AS local_rank, 'host-' || (rank // $per_host) AS host_uid,
       1000 + rank AS pid, 'synthetic-' || rank AS spool_id, 0 AS clock_offset_ns, 0 AS clock_error_ns,
       min(first_ns) AS started_at_ns, max(last_ns) AS ended_at_ns, 'exit' AS end_reason,
       rank % 2 AS tp, CAST(rank // $stage AS INTEGER) AS pp,
       CAST(rank // 2 % ($stage // 2) AS INTEGER) AS dp,
       CAST(sum(events) AS BIGINT) AS events, 0 AS events_lost, 0 AS unexplained_bytes, true AS complete
FROM memory_bucket GROUP BY session_id, attempt, rank
"""

_HOSTS = """
INSERT INTO host_info BY NAME
SELECT DISTINCT host_uid, host_uid AS host_name, 'Linux' AS os FROM rank_info
"""

_SESSION = """
INSERT INTO session BY NAME
SELECT session_id, 'synthetic' AS name, 'live' AS source, CAST(count(*) AS INTEGER) AS world_size,
       min(started_at_ns) AS started_at_ns, max(ended_at_ns) AS ended_at_ns
FROM rank_info GROUP BY session_id
"""

_BLOCKS = """
WITH numbered AS (
    SELECT CAST((n // $batch) % $ranks AS INTEGER) AS rank,
           (n // ($batch * $ranks)) * $batch + n % $batch AS seq
    FROM range(CAST($first AS BIGINT), CAST($last AS BIGINT)) AS r(n)
), placed AS (
    SELECT rank, seq, seq // $step_events AS step, seq % $step_events AS place FROM numbered
)
SELECT $session AS session_id, 0 AS attempt, rank, 'cuda:' || (rank % 8) AS device, seq AS allocation_id,
       CAST(140000000000000 + hash(rank, place) % 16777216 * 512 AS BIGINT) AS address,
       (1000 + rank % 8 * 50) * 20000 AS size_bytes, CAST(hash(place) % 16 // 15 * 7 AS BIGINT) AS stream,
       'pytorch' AS component,
       ['activation', 'temporary', 'gradient', 'autograd_detail'][1 + (hash(place, 1) % 4)::INTEGER]
       AS category,
       'aten::op' || hash(place, 2) % 24 AS operator,
       'GPT.blocks.' || place // 64 || '.mlp.fc' || place % 2 AS module,
       ['forward', 'backward'][1 + (hash(place, 3) % 2)::INTEGER] AS phase, step, seq // 3 AS call_id,
       CAST(hash(place, 4) % 500 AS BIGINT) AS stack_id,
       CAST(1800000000000000000 + seq * $event_ns + step * (2 * $skew) + hash(rank, step) % $skew
            + hash(rank, seq) % $event_ns AS BIGINT) AS allocated_ns,
       CAST(1800000000000000000 + (seq + $step_events - 1 - 2 * place) * $event_ns + step * (2 * $skew)
            + hash(rank, step) % $skew AS BIGINT) AS freed_ns,
       seq + $step_events - 1 - 2 * place AS freed_seq, false AS preexisting, false AS recomputed
FROM placed
WHERE place < $step_events // 2
"""

_CHANGES = """
INSERT INTO category_change BY NAME
SELECT session_id, attempt, rank, device, allocation_id, allocated_ns + 1000000 AS time_ns,
       allocation_id + 10 AS seq, 'gradient' AS category
FROM allocation_record
WHERE allocation_id % 16 = 3
"""

_STEPS = """
INSERT INTO step BY NAME
SELECT session_id, attempt, rank, n AS step, seq_last AS seq, 'AdamW' AS optimizer,
       1800000000000000000 + seq_last * $event_ns AS ended_ns
FROM (
    SELECT session_id, attempt, rank, n, (n + 1) * $step_events - 1 AS seq_last
    FROM rank_info, range(CAST($rank_events // $step_events AS BIGINT)) AS r(n)
)
"""

_STEP_BUCKETS = """
INSERT INTO step_bucket BY NAME
SELECT session_id, attempt, rank, device, seq // $step_events AS step, max(seq) AS seq_last,
       max(requested_bytes) AS peak_bytes, arg_max(seq, (requested_bytes, -seq)) AS peak_seq,
       arg_max(time_ns, (requested_bytes, -seq)) AS peak_ns, arg_max(requested_bytes, seq) AS last_bytes,
       CAST(sum(size_bytes) FILTER (WHERE action = 'alloc') AS BIGINT) AS allocated_bytes,
       count(*) FILTER (WHERE action = 'alloc') AS num_allocations
FROM memory_event
WHERE rank >= $first AND rank < $upto
GROUP BY session_id, attempt, rank, device, seq // $step_events
"""

_STACKS = """
INSERT INTO stack_frame BY NAME
SELECT s.n AS stack_id, CAST(f.n AS INTEGER) AS ordering, 'model' || f.n || '.py' AS file_path,
       CAST(1 + hash(s.n, f.n) % 900 AS INTEGER) AS line_number, 'forward' AS function
FROM range(500) AS s(n), range(20) AS f(n)
"""

_SAMPLES = """
INSERT INTO process_sample BY NAME
SELECT session_id, attempt, rank, device, seq_last AS seq, last_ns AS time_ns,
       reserved_last_bytes + 2147483648 AS app_reserved_bytes, 85899345920 AS device_total_bytes,
       reserved_last_bytes + 2147483648 AS device_used_bytes,
       85899345920 - 2147483648 - reserved_last_bytes AS device_free_bytes
FROM memory_bucket
WHERE seq_first % 8192 < $records
"""

_LONG_BUCKETS = """
WITH numbered AS (
    SELECT CAST(n // $buckets // $ranks AS BIGINT) AS second, CAST(n // $buckets % $ranks AS INTEGER) AS rank,
           CAST(n % $buckets AS BIGINT) AS place
    FROM range(CAST($first AS BIGINT), CAST($last AS BIGINT)) AS r(n)
), highest AS (
    SELECT *, 64 * (second * $buckets + place) AS seq,
           1800000000000000000 + second * 1000000000 AS second_ns,
           (20 + rank % 8)::BIGINT * 1073741824 + CASE WHEN rank % 4 = 0 THEN second * 262144 ELSE 0 END
           + CAST(sin((second * $buckets + place) / 7.0 + rank % 16) * 2e9 AS BIGINT)
           + CAST(hash(rank, second, place) % 1000000000 AS BIGINT)
           + CASE WHEN rank = $odd AND second BETWEEN $odd_second AND $odd_second + 30
                  THEN 12884901888 ELSE 0 END AS bytes
    FROM numbered
)
SELECT $session AS session_id, 0 AS attempt, rank, 'cuda:' || (rank % 8) AS device, second_ns AS bucket_ns,
       seq AS seq_first, seq + 55 AS seq_last, second_ns + place * 200000000 AS first_ns,
       second_ns + place * 200000000 + 199000000 AS last_ns, 56 AS events, bytes AS requested_peak_bytes,
       second_ns + place * 200000000 + 99000000 AS requested_peak_ns, seq + 20 AS requested_peak_seq,
       bytes - CAST(hash(second, place, rank, 1) % 900000000 AS BIGINT) AS requested_last_bytes,
       NULL::BIGINT AS allocated_peak_bytes, NULL::BIGINT AS allocated_last_bytes,
       NULL::BIGINT AS active_peak_bytes, NULL::BIGINT AS active_last_bytes,
       42949672960 AS reserved_peak_bytes, 42949672960 AS reserved_last_bytes
FROM highest
"""

_PROGRESS = """
INSERT INTO ingest_progress BY NAME
SELECT 'spool-' || rank AS spool_id, session_id, attempt, rank, max(seq_last) AS last_sequence, true AS final,
       0 AS updated_ns
FROM memory_bucket GROUP BY session_id, attempt, rank
"""

INSERT_EVENTS: Final = 16 * BATCH_EVENTS * RANKS  # one statement: 8 M rows, some 2 GiB of work memory at most
LONG_BUCKETS: Final = 5  # of a rank in a second, of 56 events each
LONG_ODD: Final = 417  # the rank that stands 12 GiB higher for half a minute
INSERT_BUCKETS: Final = 1_000_000


def fill(connection: duckdb.DuckDBPyConnection, shape: Shape, events: int, *, ranks: int = RANKS) -> int:
    """Makes about ``events`` events of so many ranks and everything beside them; returns how many."""
    batch = batch_events(ranks)
    whole = max(1, round(events / (batch * ranks))) * batch * ranks
    connection.execute(_CURVE)
    for first in range(0, whole, INSERT_EVENTS):
        connection.execute(
            _appending("memory_event", _EVENTS),
            _parameters(shape, first, min(first + INSERT_EVENTS, whole), ranks=ranks),
        )
    cut = {"batch": batch, "records": BUCKET_RECORDS}
    connection.execute(_appending("memory_bucket", _BUCKETS), cut)
    _fill_ranks(connection, ranks)
    return whole


def fill_buckets(connection: duckdb.DuckDBPyConnection, *, ranks: int = 1024, seconds: int = 3600) -> int:
    """Makes memory_bucket alone, and the ranks, of a job too large for its events; returns how many it had.

    1,024 ranks for an hour: 18.4 M rows of 1.03 thousand million events.
    """
    rows = ranks * seconds * LONG_BUCKETS
    shared = {"buckets": LONG_BUCKETS, "ranks": ranks, "session": SESSION}
    shared |= {"odd": min(LONG_ODD, ranks - 1), "odd_second": seconds // 2}
    for first in range(0, rows, INSERT_BUCKETS):
        place = {"first": first, "last": min(first + INSERT_BUCKETS, rows)}
        connection.execute(_appending("memory_bucket", _LONG_BUCKETS), shared | place)
    _fill_ranks(connection, ranks)
    return rows * 56


def fill_progress(connection: duckdb.DuckDBPyConnection) -> None:
    """Says that every rank's log is stored to its end, so that summaries are told."""
    connection.execute(_PROGRESS)
    connection.execute("CHECKPOINT")


def batch_events(ranks: int) -> int:
    """Events of a rank in a row: fewer where many ranks share the file."""
    return max(1024, min(BATCH_EVENTS, 2 * BATCH_EVENTS * RANKS // ranks))


def _fill_ranks(connection: duckdb.DuckDBPyConnection, ranks: int) -> None:
    connection.execute(_RANKS, {"per_host": RANKS_PER_HOST, "stage": max(2, ranks // 4)})
    connection.execute(_HOSTS)
    connection.execute(_SESSION)
    connection.execute("CHECKPOINT")


def fill_blocks(
    connection: duckdb.DuckDBPyConnection, shape: Shape, events: int, *, ranks: int = RANKS
) -> None:
    """Adds to a filled database the blocks behind its events: with category, module, line, phase and step.

    Each step's first half allocates, its second half frees in the reverse order. Samples of the processes,
    too.

    Args:
        events: what :func:`fill` returned.
    """
    for first in range(0, events, INSERT_EVENTS):
        connection.execute(
            _appending("allocation_record", _BLOCKS),
            _parameters(shape, first, min(first + INSERT_EVENTS, events), ranks=ranks, of_blocks=True),
        )
    connection.execute(_CHANGES)
    steps = {"rank_events": events // ranks, "step_events": shape.step_events, "event_ns": EVENT_NS}
    connection.execute(_STEPS, steps)
    at_once = max(1, ranks // RANKS)
    for first in range(0, ranks, at_once):
        some = {"first": first, "upto": first + at_once}
        connection.execute(_STEP_BUCKETS, some | {"step_events": shape.step_events})
    connection.execute(_SAMPLES, {"records": BUCKET_RECORDS})
    connection.execute(_STACKS)
    connection.execute("CHECKPOINT")


def _appending(table: str, rows: str) -> str:
    """The statement that stores the rows of a query of ours, in their form on disk."""
    packed = packed_rows(table, f"({rows})")
    return f"INSERT INTO {schema.stored_name(TABLES[table])} BY NAME SELECT * FROM {packed}"


def _parameters(
    shape: Shape, first: int, last: int, *, ranks: int, of_blocks: bool = False
) -> dict[str, int | str]:
    values: dict[str, int | str] = {
        "first": first,
        "last": last,
        "batch": batch_events(ranks),
        "ranks": ranks,
        "step_events": shape.step_events,
        "skew": shape.step_skew_ns,
        "leak": shape.leak_bytes,
        "event_ns": EVENT_NS,
        "session": SESSION,
    }
    if of_blocks:
        del values["leak"]
    return values
