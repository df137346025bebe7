-- Question: Which devices did a rank use in which attempt, and how high did each stand? The highest first.
-- Parameters:
--   session (text): session id
--   rank (count): global rank
--   attempt (count): which start of the workers; NULL for all
--   device (text): device type and index; NULL for all
-- Columns:
--   attempt, rank, device: which
--   offset_ns (ns): add to the host's times to get the common clock
--   peak_bytes (bytes): highest requested bytes
--   peak_seq: the event after which it stood so high
--   peak_ns (ns, common clock): when
--   host_name: its host
SELECT
    p.attempt,
    p.rank,
    p.device,
    coalesce(s.offset_ns, 0) AS offset_ns,
    p.peak_requested_bytes AS peak_bytes,
    p.peak_seq,
    p.peak_time_ns AS peak_ns,
    coalesce(p.host_name, p.host_uid, 'unknown') AS host_name
FROM peak_by_rank AS p
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
WHERE p.session_id = $session
    AND p.rank = $rank
    AND ($attempt::INTEGER IS NULL OR p.attempt = $attempt)
    AND ($device::VARCHAR IS NULL OR p.device = $device)
ORDER BY p.device LIKE 'cpu%', p.peak_requested_bytes DESC, p.attempt DESC, p.device;
