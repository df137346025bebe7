-- Question: What did every rank hold at one instant, and after which event of its own? Exact.
-- Parameters:
--   of_session: session id
--   at_ns (ns, common clock): the instant; events at that very nanosecond have happened
-- Columns:
--   attempt, rank, device: a device of a rank that had begun and not ended by then
--   device_type: cpu, cuda, ...
--   host_name: its host
--   requested_bytes (bytes): requested bytes then
--   seq: its last event by then; live_at_points and live_at_seq have what was alive
--   time_ns (ns, common clock): when that event was
-- Scatter: hosts
CREATE OR REPLACE MACRO held_at(of_session, at_ns) AS TABLE
-- A list: DuckDB takes one row to be few, and hashes these, not the buckets.
WITH span AS MATERIALIZED (
    SELECT list({
        attempt: attempt, rank: rank, host_uid: host_uid, offset_ns: coalesce(offset_ns, 0), ended_ns: ended_ns, has_clock: has_clock
    }) AS spans
    FROM rank_span
    WHERE session_id = of_session
),
-- Which part of a device's log holds its last event by then: one cell, but where a clock was set back.
cell AS MATERIALIZED (
    SELECT
        c.attempt,
        c.rank,
        c.device,
        c.seq_first,
        c.seq_last,
        c.first_ns,
        c.last_ns,
        coalesce(s.offset_ns, 0) AS offset_ns,
        s.host_uid,
        c.last_ns + coalesce(s.offset_ns, 0) > at_ns - 16000000000 AS is_recent
    FROM memory_cell(of_session, 16) AS c
    LEFT JOIN (SELECT unnest(spans, recursive := true) FROM span) AS s USING (attempt, rank)
    WHERE c.first_ns + coalesce(s.offset_ns, 0) <= at_ns
        AND (s.ended_ns IS NULL OR s.ended_ns > at_ns)
        -- Between recordings without times there is no one instant.
        AND (s.has_clock OR (SELECT len(list_filter(spans, lambda s: NOT s.has_clock)) FROM span) = 1)
    QUALIFY c.seq_last >= max(c.seq_first) OVER (PARTITION BY c.attempt, c.rank, c.device)
),
-- The bounds on the table's own column, of all devices together, pass over most of the file: so what is long over, such
-- as what was allocated at the beginning alone, is read apart.
bucket AS (
    SELECT b.*, c.offset_ns, c.host_uid
    FROM (FROM cell WHERE is_recent) AS c
    INNER JOIN memory_bucket AS b
        ON b.attempt = c.attempt AND b.rank = c.rank AND b.device = c.device AND b.seq_first BETWEEN c.seq_first AND c.seq_last
    WHERE b.session_id = of_session
        AND b.first_ns + c.offset_ns <= at_ns
        AND b.first_ns >= (SELECT coalesce(min(first_ns), 9223372036854775807) FROM cell WHERE is_recent)
        AND b.first_ns <= (SELECT max(at_ns - offset_ns) FROM cell WHERE is_recent)
    UNION ALL
    SELECT b.*, c.offset_ns, c.host_uid
    FROM (FROM cell WHERE NOT is_recent) AS c
    INNER JOIN memory_bucket AS b
        ON b.attempt = c.attempt AND b.rank = c.rank AND b.device = c.device AND b.seq_first BETWEEN c.seq_first AND c.seq_last
    WHERE b.session_id = of_session
        AND b.first_ns >= (SELECT coalesce(min(first_ns), 9223372036854775807) FROM cell WHERE NOT is_recent)
        AND b.first_ns <= (SELECT max(last_ns) FROM cell WHERE NOT is_recent)
),
-- The last of each device is read to the event; those before it are over.
latest AS (
    SELECT DISTINCT ON (attempt, rank, device) * FROM bucket ORDER BY attempt, rank, device, seq_first DESC
),
held AS (
    SELECT attempt, rank, device, offset_ns, host_uid, requested_last_bytes AS bytes, seq_last AS seq, last_ns
    FROM latest
    WHERE last_ns + offset_ns <= at_ns
    UNION ALL
    SELECT
        l.attempt,
        l.rank,
        l.device,
        any_value(l.offset_ns),
        any_value(l.host_uid),
        arg_max(e.requested_bytes, e.seq),
        max(e.seq),
        max(e.time_ns)
    FROM latest AS l
    INNER JOIN memory_event AS e USING (attempt, rank, device)
    WHERE e.session_id = of_session
        AND e.requested_bytes IS NOT NULL
        AND l.last_ns + l.offset_ns > at_ns
        AND e.time_ns + l.offset_ns <= at_ns
        AND e.seq >= l.seq_first
        AND e.seq <= l.seq_last
        -- Again for all hosts together, on the table's own column: most of the file is passed over, all of it where no
        -- device is amid a bucket.
        AND e.time_ns >= (
            SELECT coalesce(min(first_ns), 9223372036854775807) FROM latest WHERE last_ns + offset_ns > at_ns
        )
        AND e.time_ns <= (SELECT max(at_ns - offset_ns) FROM latest)
    GROUP BY l.attempt, l.rank, l.device
)
SELECT
    t.attempt,
    t.rank,
    t.device,
    split_part(t.device, ':', 1) AS device_type,
    h.host_name,
    t.bytes AS requested_bytes,
    t.seq,
    t.last_ns + t.offset_ns AS time_ns
FROM held AS t
LEFT JOIN host_info AS h ON t.host_uid = h.host_uid
CROSS JOIN unstreamed
ORDER BY t.bytes DESC, t.attempt, t.rank, t.device;

COMMENT ON MACRO TABLE held_at IS 'What every rank held at one instant of the common clock, exact by event.';
