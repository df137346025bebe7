-- Question: Which devices of which ranks had an allocator, how high did they get, and what is known of them?
-- Parameters:
--   session (text): session id
--   rank (count): global rank; NULL for all
--   attempt (count): which start of the workers; NULL for all
-- Columns:
--   attempt, rank, device, device_type, peak_requested_bytes, events, is_rank_peak: as in peak_by_rank
--   allocator, settings, total_bytes, source: as in device_info; NULL where it has no row
--   num_segments (count): segments older than the recording
-- Scatter: none
SELECT
    p.attempt,
    p.rank,
    p.device,
    p.device_type,
    p.peak_requested_bytes,
    p.events,
    p.is_rank_peak,
    d.allocator,
    d.settings,
    d.total_bytes,
    d.source,
    (
        SELECT count(*)
        FROM older_segment AS s
        WHERE s.session_id = $session AND s.attempt = p.attempt AND s.rank = p.rank AND s.device = p.device
    ) AS num_segments
FROM peak_by_rank AS p
LEFT JOIN device_info AS d
    ON d.session_id = $session AND d.attempt = p.attempt AND d.rank = p.rank AND d.device = p.device
WHERE p.session_id = $session
    AND ($rank::INTEGER IS NULL OR p.rank = $rank)
    AND ($attempt::INTEGER IS NULL OR p.attempt = $attempt)
ORDER BY p.peak_requested_bytes DESC, p.attempt, p.rank, p.device;
