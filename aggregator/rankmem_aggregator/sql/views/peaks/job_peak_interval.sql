-- Question: Between which bounds does the job's peak lie, by summaries alone, without reading an event?
-- Parameters:
--   of_session: session id
-- Columns:
--   device_type: the sum is over the devices of one type
--   reached_bytes (bytes): the sum was as high at least: where no rank had events, or one rank's own peak
--   bound_bytes (bytes): it was never higher
--   bound_ns (ns, common clock): where this bound is reached first: the peak may lie elsewhere
--   bound_utc: the same, readable
--   num_ranks: ranks in the sum
-- Scatter: none
CREATE OR REPLACE MACRO job_peak_interval(of_session) AS TABLE
WITH track AS MATERIALIZED (
    SELECT
        split_part(b.device, ':', 1) AS device_type,
        b.attempt,
        b.rank,
        b.device,
        coalesce(s.offset_ns, 0) AS offset_ns,
        -- As in group_peak: bytes are gone when the process is, never before its last event.
        CASE WHEN s.ended_ns IS NOT NULL
            THEN greatest(s.ended_ns, b.last_ns + coalesce(s.offset_ns, 0)) END AS closed_ns
    FROM (
        SELECT session_id, attempt, rank, device, max(last_ns) AS last_ns
        FROM memory_bucket
        WHERE session_id = of_session
        GROUP BY ALL
    ) AS b
    INNER JOIN rank_group(of_session, 'job') AS g USING (attempt, rank, device)
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
    WHERE g.is_summed
),
piece AS MATERIALIZED (
    SELECT
        t.device_type,
        b.attempt,
        b.rank,
        b.device,
        b.first_ns + t.offset_ns AS first_ns,
        b.last_ns + t.offset_ns AS last_ns,
        b.seq_last,
        b.requested_peak_bytes AS peak_bytes,
        b.requested_last_bytes AS last_bytes,
        lag(b.requested_last_bytes, 1, 0) OVER (
            PARTITION BY b.attempt, b.rank, b.device ORDER BY b.seq_first
        ) AS entry_bytes
    FROM memory_bucket AS b
    INNER JOIN track AS t USING (attempt, rank, device)
    WHERE b.session_id = of_session
),
-- Within a piece a device held what it reached there at most, and nothing for certain; after it what it ended with.
-- Steps at one instant are taken together.
step AS (
    SELECT
        device_type,
        first_ns AS time_ns,
        greatest(peak_bytes, entry_bytes) - entry_bytes AS bound_step,
        -entry_bytes AS reached_step
    FROM piece
    UNION ALL
    SELECT device_type, last_ns + 1, last_bytes - greatest(peak_bytes, entry_bytes), last_bytes FROM piece
    UNION ALL
    SELECT t.device_type, t.closed_ns + 1, -p.last_bytes, -p.last_bytes
    FROM track AS t
    INNER JOIN (
        SELECT attempt, rank, device, arg_max(last_bytes, seq_last) AS last_bytes
        FROM piece
        GROUP BY attempt, rank, device
    ) AS p USING (attempt, rank, device)
    WHERE t.closed_ns IS NOT NULL
),
course AS (
    SELECT
        device_type,
        time_ns,
        sum(bound_step) OVER (PARTITION BY device_type ORDER BY time_ns) AS bound_bytes,
        sum(reached_step) OVER (PARTITION BY device_type ORDER BY time_ns) AS reached_bytes
    FROM (
        SELECT device_type, time_ns, sum(bound_step) AS bound_step, sum(reached_step) AS reached_step
        FROM step
        GROUP BY device_type, time_ns
    )
),
whole AS (
    SELECT
        device_type,
        max(reached_bytes) AS reached_bytes,
        max(bound_bytes) AS bound_bytes,
        arg_max(time_ns, (bound_bytes, -time_ns)) AS bound_ns
    FROM course
    GROUP BY device_type
),
alone AS (
    SELECT device_type, max(peak_bytes) AS peak_bytes, count(DISTINCT rank) AS num_ranks
    FROM piece
    GROUP BY device_type
)
SELECT
    w.device_type,
    greatest(w.reached_bytes, a.peak_bytes)::BIGINT AS reached_bytes,
    w.bound_bytes::BIGINT AS bound_bytes,
    w.bound_ns,
    utc_of(w.bound_ns) AS bound_utc,
    a.num_ranks
FROM whole AS w
INNER JOIN alone AS a USING (device_type)
CROSS JOIN unstreamed
ORDER BY w.device_type;

COMMENT ON MACRO TABLE job_peak_interval IS 'Bounds of the job''s peak by summaries alone.';
