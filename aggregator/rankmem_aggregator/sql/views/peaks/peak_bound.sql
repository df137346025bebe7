-- Question: Is each rank's peak exact, and where events are missing, how high was it at least?
-- Columns:
--   session_id, attempt, rank, device, device_type: whose
--   peak_requested_bytes (bytes): as in peak_by_rank: the highest total of the events that are there
--   is_exact: true if nothing is missing that figures of bytes depend on; NULL where that is not known: an imported
--     recording does not state whether it is complete
--   at_least_bytes (bytes): the true peak is not below it: the highest total before the first hole, up to which every
--     event is there; where later totals cannot be too high, the peak itself; NULL where it cannot be derived
--   at_most_bytes (bytes): the true peak is not above it; NULL where events are missing: what came in a hole is unknown
-- Scatter: hosts
CREATE OR REPLACE VIEW peak_bound AS
WITH flawed AS (
    SELECT
        session_id,
        attempt,
        rank,
        CASE WHEN bool_or(is_bytes) THEN false END AS is_exact,
        bool_or(why = 'unexplained') AS is_unexplained
    FROM incompleteness
    WHERE is_bytes IS DISTINCT FROM false
    GROUP BY session_id, attempt, rank
),
loss AS MATERIALIZED (
    SELECT session_id, attempt, rank, first_lost_seq
    FROM rank_loss
    WHERE first_lost_seq IS NOT NULL
),
-- The part of a block of 64 positions behind a hole does not show what came before.
before AS (
    SELECT
        l.session_id,
        l.attempt,
        l.rank,
        b.device,
        max(b.requested_peak_bytes) AS bytes
    FROM loss AS l
    INNER JOIN memory_bucket AS b USING (session_id, attempt, rank)
    WHERE b.requested_peak_seq < l.first_lost_seq
    GROUP BY ALL
),
bound AS (
    SELECT
        t.session_id,
        t.attempt,
        t.rank,
        t.device,
        t.peak_requested_bytes,
        b.bytes AS before_bytes,
        l.first_lost_seq
    FROM (
        SELECT session_id, attempt, rank, device, max(peak_bytes) AS peak_requested_bytes
        FROM memory_cell(NULL, 1024)
        GROUP BY ALL
    ) AS t
    LEFT JOIN loss AS l USING (session_id, attempt, rank)
    LEFT JOIN before AS b USING (session_id, attempt, rank, device)
)
SELECT
    b.session_id,
    b.attempt,
    b.rank,
    b.device,
    split_part(b.device, ':', 1) AS device_type,
    b.peak_requested_bytes,
    CASE WHEN f.rank IS NULL THEN true ELSE f.is_exact END AS is_exact,
    CASE
        WHEN b.first_lost_seq IS NOT NULL THEN coalesce(b.before_bytes, 0)
        WHEN NOT coalesce(f.is_unexplained, false) THEN b.peak_requested_bytes
    END AS at_least_bytes,
    CASE WHEN f.rank IS NULL THEN b.peak_requested_bytes END AS at_most_bytes
FROM bound AS b
LEFT JOIN flawed AS f USING (session_id, attempt, rank);

COMMENT ON VIEW peak_bound IS 'Whether a rank''s peak is exact, and how high it was at least where events are missing.';
