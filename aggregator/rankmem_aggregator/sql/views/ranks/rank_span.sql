-- Question: From when to when did each rank live, on the clock that all ranks of a session share?
-- Columns:
--   session_id: the job
--   attempt: which start of the workers
--   rank: global rank
--   host_uid: its host
--   offset_ns (ns): add to the host's times to get the common clock, which is the aggregator's
--   error_ns (ns): the offset is within this bound; NULL where it was never measured
--   started_ns (ns, common clock): when the agent attached
--   ended_ns (ns, common clock): when its process ended and its memory was gone; NULL while it runs
--   started_utc: the same, readable
--   ended_utc: the same, readable
--   has_clock: false if its times are no wall clock's: it was imported from a recording without times, whose events
--     count from 0 on. Such a rank is in no sum over several
-- Scatter: hosts
CREATE OR REPLACE VIEW rank_span AS
WITH host_span AS (
    SELECT
        session_id,
        attempt,
        host_uid,
        min(started_at_ns) AS first_ns,
        CASE WHEN count(*) = count(ended_at_ns) THEN max(ended_at_ns) END AS last_ns
    FROM rank_info
    GROUP BY ALL
),
-- One offset for a host and attempt: the estimate with the smallest error, taken while it ran (a minute more
-- on either side), the earliest among equals.
estimate AS (
    SELECT
        s.session_id,
        s.attempt,
        s.host_uid,
        arg_min(c.offset_ns, (c.error_ns, c.time_ns)) AS offset_ns,
        min(c.error_ns) AS error_ns
    FROM host_span AS s
    INNER JOIN clock_offset AS c
        ON s.host_uid = c.host_uid
        AND c.time_ns >= s.first_ns - 60000000000
        AND (s.last_ns IS NULL OR c.time_ns <= s.last_ns + 60000000000)
    GROUP BY ALL
)
SELECT
    session_id,
    attempt,
    rank,
    host_uid,
    offset_ns,
    error_ns,
    started_ns,
    ended_ns,
    utc_of(started_ns) AS started_utc,
    utc_of(ended_ns) AS ended_utc,
    started_ns IS NULL OR utc_of(started_ns) IS NOT NULL AS has_clock
FROM (
    SELECT
        *,
        started_at_ns + offset_ns AS started_ns,
        -- As in rank_over.
        coalesce(
            ended_at_ns + offset_ns,
            min(started_at_ns + offset_ns) OVER (
                PARTITION BY session_id ORDER BY attempt RANGE BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
            )
        ) AS ended_ns
    FROM (
        SELECT
            r.session_id,
            r.attempt,
            r.rank,
            r.host_uid,
            r.started_at_ns,
            r.ended_at_ns,
            coalesce(e.offset_ns, r.clock_offset_ns, 0) AS offset_ns,
            coalesce(e.error_ns, r.clock_error_ns) AS error_ns
        FROM rank_info AS r
        LEFT JOIN estimate AS e USING (session_id, attempt, host_uid)
    )
)
CROSS JOIN unstreamed;

COMMENT ON VIEW rank_span IS 'A rank''s life on the session''s common clock, and the clock offset that gave it.';
