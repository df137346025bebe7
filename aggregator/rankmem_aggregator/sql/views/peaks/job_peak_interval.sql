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
WITH whole AS (
    SELECT
        device_type,
        max(reached_bytes) AS reached_bytes,
        max(bound_bytes) AS bound_bytes,
        arg_max(time_ns, (bound_bytes, -time_ns)) AS bound_ns
    FROM job_peak_course(of_session)
    GROUP BY device_type
),
alone AS (
    SELECT
        split_part(b.device, ':', 1) AS device_type,
        max(b.requested_peak_bytes) AS peak_bytes,
        count(DISTINCT b.rank) AS num_ranks
    FROM memory_bucket AS b
    INNER JOIN rank_group(of_session, 'job') AS g USING (attempt, rank, device)
    WHERE b.session_id = of_session AND g.is_summed
    GROUP BY split_part(b.device, ':', 1)
)
SELECT
    w.device_type,
    greatest(w.reached_bytes, a.peak_bytes)::BIGINT AS reached_bytes,
    w.bound_bytes,
    w.bound_ns,
    utc_of(w.bound_ns) AS bound_utc,
    a.num_ranks
FROM whole AS w
INNER JOIN alone AS a USING (device_type)
CROSS JOIN unstreamed
ORDER BY w.device_type;

COMMENT ON MACRO TABLE job_peak_interval IS 'Bounds of the job''s peak by summaries alone.';
