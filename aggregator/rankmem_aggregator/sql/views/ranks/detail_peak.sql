-- Question: On each host, was the step in which a rank stood highest recorded in full, and which one that was comes nearest?
-- Columns:
--   session_id, attempt, host_uid: where; only hosts with ranks that were recorded in full and in summary by turns
--   rank, device: of these ranks' devices of a kind (cpu, cuda) the one that stood highest in a step that ended
--   peak_step: that step
--   peak_bytes (bytes): how high, requested bytes; exact in summary too
--   is_full: whether all is known in it that the process was started for: operators, stacks, modules
--   full_step: the device's highest step of which they are; NULL where there is none
--   full_bytes (bytes): how high it stood
-- Scatter: hosts
CREATE OR REPLACE VIEW detail_peak AS
WITH span AS MATERIALIZED (
    SELECT session_id, attempt, rank, step_first, coalesce(step_last, 9223372036854775807) AS step_last
    FROM detail_span
),
reduced AS (
    SELECT DISTINCT r.session_id, r.attempt, r.rank, r.host_uid
    FROM rank_info AS r
    SEMI JOIN span USING (session_id, attempt, rank)
    CROSS JOIN unstreamed
),
height AS (
    SELECT r.session_id, r.attempt, r.host_uid, split_part(b.device, ':', 1) AS kind, max(b.peak_bytes) AS peak_bytes
    FROM step_bucket AS b
    INNER JOIN reduced AS r USING (session_id, attempt, rank)
    GROUP BY r.session_id, r.attempt, r.host_uid, split_part(b.device, ':', 1)
),
highest AS (
    SELECT r.session_id, r.attempt, r.host_uid, min((b.rank, b.device)) AS whose
    FROM step_bucket AS b
    INNER JOIN reduced AS r USING (session_id, attempt, rank)
    INNER JOIN height AS h
        ON r.session_id = h.session_id AND r.attempt = h.attempt AND r.host_uid IS NOT DISTINCT FROM h.host_uid
        AND split_part(b.device, ':', 1) = h.kind AND b.peak_bytes = h.peak_bytes
    GROUP BY r.session_id, r.attempt, r.host_uid, h.kind
),
-- What is recorded changes between steps alone.
of_step AS (
    SELECT b.session_id, b.attempt, h.host_uid, b.rank, b.device, b.step, b.peak_bytes, s.step_first IS NULL AS is_full
    FROM step_bucket AS b
    INNER JOIN (SELECT session_id, attempt, host_uid, whose[1] AS rank, whose[2] AS device FROM highest) AS h
        USING (session_id, attempt, rank, device)
    LEFT JOIN span AS s
        ON b.session_id = s.session_id AND b.attempt = s.attempt AND b.rank = s.rank
        AND b.step BETWEEN s.step_first AND s.step_last
)
SELECT
    session_id,
    attempt,
    host_uid,
    rank,
    device,
    -- Of equals one in full, then the first.
    arg_max(step, (peak_bytes, is_full, -step)) AS peak_step,
    max(peak_bytes) AS peak_bytes,
    arg_max(is_full, (peak_bytes, is_full, -step)) AS is_full,
    arg_max(step, (peak_bytes, -step)) FILTER (is_full) AS full_step,
    max(peak_bytes) FILTER (is_full) AS full_bytes
FROM of_step
CROSS JOIN unstreamed
GROUP BY session_id, attempt, host_uid, rank, device;

COMMENT ON VIEW detail_peak IS 'The highest step of each kind of device on each host that was recorded in full and in summary by turns, and the highest in full.';
