-- Question: What did each group of blocks hold at each rank's own peak? Exact.
-- Parameters:
--   session (text): session id
--   by (text): category, phase, operator, module, line, step, annotation, stream or component
-- Columns:
--   attempt, rank, device, device_type: whose, on the attempt with the rank's highest peak
--   rank_peak_bytes (bytes): the rank's own peak
--   group_name: the group; NULL for blocks without one
--   bytes_at_rank_peak (bytes): of its blocks alive then; over all groups these add up to the peak
-- Scatter: hosts
WITH top AS MATERIALIZED (
    SELECT attempt, rank, device, device_type, peak_requested_bytes, peak_seq
    FROM peak_by_rank
    WHERE session_id = $session AND is_rank_peak
)
SELECT
    t.attempt,
    t.rank,
    t.device,
    t.device_type,
    t.peak_requested_bytes AS rank_peak_bytes,
    h.group_name,
    h.live_bytes AS bytes_at_rank_peak
FROM held_at_points(
    $session, $by, (SELECT list({attempt: attempt, rank: rank, device: device, seq: peak_seq}) FROM top)
) AS h
INNER JOIN top AS t ON h.attempt = t.attempt AND h.rank = t.rank AND h.device = t.device
ORDER BY rank, device, bytes_at_rank_peak DESC, group_name;
