-- Question: Which device of which rank does a request for a curve select, and how many events does it have?
-- Parameters:
--   session (text): session id
--   rank (count): global rank; NULL for the one that stood highest
--   attempt (count): which start of the workers; NULL for the one in which it stood highest
--   device (text): device type and index; NULL for the one on which it stood highest
--   from_ns (ns, common clock): the beginning; NULL for the rank's own
--   until_ns (ns, common clock): the end; NULL for the rank's own
-- Columns:
--   attempt, rank, device: whose
--   host_name: its host
--   first_ns, last_ns (ns, common clock): its first and last event
--   events: in the seconds that the range touches
-- Scatter: none
SELECT
    p.attempt,
    p.rank,
    p.device,
    any_value(p.host_name) AS host_name,
    min(b.first_ns) + coalesce(any_value(s.offset_ns), 0) AS first_ns,
    max(b.last_ns) + coalesce(any_value(s.offset_ns), 0) AS last_ns,
    coalesce(sum(b.events) FILTER (
        WHERE ($from_ns::BIGINT IS NULL OR b.last_ns + coalesce(s.offset_ns, 0) >= $from_ns)
            AND ($until_ns::BIGINT IS NULL OR b.first_ns + coalesce(s.offset_ns, 0) <= $until_ns)
    ), 0)::BIGINT AS events
FROM peak_by_rank AS p
INNER JOIN memory_bucket AS b USING (session_id, attempt, rank, device)
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
WHERE p.session_id = $session
    AND b.session_id = $session
    AND ($rank::INTEGER IS NULL OR p.rank = $rank)
    AND ($attempt::INTEGER IS NULL OR p.attempt = $attempt)
    AND ($device::VARCHAR IS NULL OR p.device = $device)
GROUP BY p.attempt, p.rank, p.device, p.peak_requested_bytes
ORDER BY p.peak_requested_bytes DESC, p.attempt DESC, p.rank, p.device
LIMIT 1;
