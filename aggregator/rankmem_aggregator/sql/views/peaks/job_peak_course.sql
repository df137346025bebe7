-- Question: How high can the sum over all ranks have stood at each time, by summaries alone, and how high did it stand?
-- Parameters:
--   of_session: session id
-- Columns:
--   device_type: the sum is over the devices of one type
--   time_ns (ns, common clock): from here until the next time
--   bound_bytes (bytes): it was never higher
--   reached_bytes (bytes): what ranks without events there held for certain
-- Scatter: none
CREATE OR REPLACE MACRO job_peak_course(of_session) AS TABLE
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
)
SELECT
    device_type,
    time_ns,
    (sum(bound_step) OVER (PARTITION BY device_type ORDER BY time_ns))::BIGINT AS bound_bytes,
    (sum(reached_step) OVER (PARTITION BY device_type ORDER BY time_ns))::BIGINT AS reached_bytes
FROM (
    SELECT device_type, time_ns, sum(bound_step) AS bound_step, sum(reached_step) AS reached_step
    FROM step
    GROUP BY device_type, time_ns
)
CROSS JOIN unstreamed
ORDER BY device_type, time_ns;

COMMENT ON MACRO TABLE job_peak_course IS 'How high the sum over all ranks can have stood, and stood for certain, at each time, by summaries alone.';
