-- Question: How did a device of a rank go up and down, by the highest of each second?
-- Parameters:
--   session (text): session id
--   attempt (count): which start of the workers
--   rank (count): global rank
--   device (text): device type and index
--   from_ns (ns, common clock): the beginning; NULL for the rank's own
--   until_ns (ns, common clock): the end; NULL for the rank's own
-- Columns:
--   time_ns (ns, common clock): of the highest requested bytes in the second
--   requested (bytes): the highest in it
--   allocated, active, reserved (bytes): the highest of the allocator's own in it; NULL where not known
-- Scatter: none
SELECT
    arg_max(b.requested_peak_ns, (b.requested_peak_bytes, -b.seq_first)) + coalesce(any_value(s.offset_ns), 0) AS time_ns,
    max(b.requested_peak_bytes) AS requested,
    CASE WHEN any_value(b.device) NOT IN ('cpu', 'pinned') THEN max(b.allocated_peak_bytes) END AS allocated,
    CASE WHEN any_value(b.device) NOT IN ('cpu', 'pinned') THEN max(b.active_peak_bytes) END AS active,
    CASE WHEN any_value(b.device) NOT IN ('cpu', 'pinned') THEN max(b.reserved_peak_bytes) END AS reserved
FROM memory_bucket AS b
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
WHERE b.session_id = $session
    AND b.attempt = $attempt
    AND b.rank = $rank
    AND b.device = $device
    AND ($from_ns::BIGINT IS NULL OR b.last_ns + coalesce(s.offset_ns, 0) >= $from_ns)
    AND ($until_ns::BIGINT IS NULL OR b.first_ns + coalesce(s.offset_ns, 0) <= $until_ns)
GROUP BY b.bucket_ns
ORDER BY b.bucket_ns;
