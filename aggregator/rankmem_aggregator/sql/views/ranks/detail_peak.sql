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
FROM (
    SELECT
        b.session_id,
        b.attempt,
        r.host_uid,
        b.rank,
        b.device,
        b.step,
        b.peak_bytes,
        -- What is recorded changes between steps alone.
        len(list_filter(t.spans, lambda span: b.step >= span.step_first AND b.step <= span.step_last)) = 0 AS is_full
    FROM step_bucket AS b
    INNER JOIN rank_info AS r USING (session_id, attempt, rank)
    INNER JOIN (
        SELECT
            session_id,
            attempt,
            rank,
            list({step_first: step_first, step_last: coalesce(step_last, 9223372036854775807)}) AS spans
        FROM detail_turn
        GROUP BY session_id, attempt, rank
    ) AS t USING (session_id, attempt, rank)
)
GROUP BY session_id, attempt, host_uid, rank, device
QUALIFY row_number() OVER (
    PARTITION BY session_id, attempt, host_uid, split_part(device, ':', 1)
    ORDER BY max(peak_bytes) DESC, rank, device
) = 1;

COMMENT ON VIEW detail_peak IS 'The highest step of each kind of device on each host that was recorded in full and in summary by turns, and the highest in full.';
