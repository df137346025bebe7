-- Question: How high and low did each device of each rank stand in cells of time, a few rows for long stretches?
-- Parameters:
--   of_session: session id; NULL for all
--   of_width_s: widest cell of use, in seconds; the widest of 4, 16, 64, 256 and 1024 that is not wider is taken.
--     Below 4 the answer is memory_bucket
-- Columns:
--   session_id, attempt, rank, device: whose
--   width_s (s): width of the cell; 1 for a row of memory_bucket: what is not in memory_level yet
--   cell_ns (ns, the host's clock): where the cell begins; one cell may have several rows, for stretches of the log
--   seq_first, seq_last: first and last event in it
--   first_ns, last_ns (ns, the host's clock): their times
--   events: in it
--   peak_bytes (bytes): highest requested bytes after an event in it
--   peak_ns (ns, the host's clock): the first instant at which it stood so high
--   peak_seq: the event after which it did
--   low_bytes (bytes): lowest requested bytes known in it: of the last event of each row of memory_bucket
--   last_bytes (bytes): requested bytes after the last event
--   allocated_peak_bytes, active_peak_bytes, reserved_peak_bytes (bytes): the allocator's own highest; NULL if unknown
--   allocated_last_bytes, active_last_bytes, reserved_last_bytes (bytes): its last known
-- Scatter: hosts
CREATE OR REPLACE MACRO memory_cell(of_session, of_width_s) AS TABLE
-- By itself, or DuckDB joins every row before it asks for this bound. By the bound, which is of all ranks together, it
-- passes over most of the file, over all of it once every rank is folded to its log's end. Where nothing is folded (an
-- older file, a recording that has just begun) every row is read, whosever it is.
WITH tail AS MATERIALIZED (
    SELECT *
    FROM memory_bucket
    WHERE (of_session IS NULL OR session_id = of_session)
        AND of_width_s >= 4
        AND seq_first > (
            SELECT
                CASE
                    WHEN count(*) FILTER (k.seq > -4611686018427387904) = 0 THEN -9223372036854775808
                    ELSE coalesce(min(k.seq) FILTER (NOT k.final), 9223372036854775807)
                END
            FROM (
                SELECT coalesce(t.seq, -4611686018427387904) AS seq, coalesce(t.final, false) AS final
                FROM (
                    SELECT session_id, attempt, rank FROM rank_info
                    UNION ALL
                    SELECT session_id, attempt, rank FROM ingest_progress
                ) AS r
                LEFT JOIN level_progress AS t USING (session_id, attempt, rank)
                WHERE of_session IS NULL OR r.session_id = of_session
            ) AS k
        )
)
SELECT
    l.session_id,
    l.attempt,
    l.rank,
    l.device,
    l.width_s,
    l.cell_ns,
    l.seq_first,
    l.seq_last,
    l.first_ns,
    l.last_ns,
    l.events,
    l.peak_bytes,
    l.peak_ns,
    l.peak_seq,
    l.low_bytes,
    l.last_bytes,
    l.allocated_peak_bytes,
    l.active_peak_bytes,
    l.reserved_peak_bytes,
    l.allocated_last_bytes,
    l.active_last_bytes,
    l.reserved_last_bytes
FROM memory_level AS l
ANTI JOIN (FROM level_progress WHERE seq = -4611686018427387904) AS p USING (session_id, attempt, rank)
WHERE (of_session IS NULL OR l.session_id = of_session)
    AND of_width_s >= 4
    AND l.width_s = CASE
        WHEN of_width_s >= 1024 THEN 1024
        WHEN of_width_s >= 256 THEN 256
        WHEN of_width_s >= 64 THEN 64
        WHEN of_width_s >= 16 THEN 16
        ELSE 4
    END
UNION ALL
SELECT
    b.session_id,
    b.attempt,
    b.rank,
    b.device,
    1 AS width_s,
    b.bucket_ns,
    b.seq_first,
    b.seq_last,
    b.first_ns,
    b.last_ns,
    b.events,
    b.requested_peak_bytes,
    b.requested_peak_ns,
    b.requested_peak_seq,
    b.requested_last_bytes,
    b.requested_last_bytes,
    b.allocated_peak_bytes,
    b.active_peak_bytes,
    b.reserved_peak_bytes,
    b.allocated_last_bytes,
    b.active_last_bytes,
    b.reserved_last_bytes
FROM (
    FROM memory_bucket WHERE of_width_s < 4 AND (of_session IS NULL OR session_id = of_session)
    UNION ALL
    SELECT b.*
    FROM tail AS b
    LEFT JOIN level_progress AS p USING (session_id, attempt, rank)
    CROSS JOIN unstreamed
    WHERE b.seq_first > coalesce(p.seq, -4611686018427387904)
) AS b;

COMMENT ON MACRO TABLE memory_cell IS 'Highest, lowest and last of every device in cells of time: memory_level, and of memory_bucket what is not in it yet.';
