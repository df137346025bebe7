-- Question: How did a device of a rank go up and down, event by event?
-- Parameters:
--   session (text): session id
--   attempt (count): which start of the workers
--   rank (count): global rank
--   device (text): device type and index
--   from_ns (ns, common clock): the beginning; NULL for the rank's own
--   until_ns (ns, common clock): the end; NULL for the rank's own
-- Columns:
--   time_ns (ns, common clock): of the event; or of what is older than the recording, see held_before
--   requested (bytes): requested bytes after it
--   allocated, active, reserved (bytes): the allocator's own; NULL where not known, and on cpu
-- Scatter: none
SELECT
    e.time_ns + coalesce(s.offset_ns, 0) AS time_ns,
    e.requested_bytes AS requested,
    e.allocated_bytes AS allocated,
    e.active_bytes AS active,
    e.reserved_bytes AS reserved
FROM (
    SELECT * FROM memory_event WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device
    UNION ALL BY NAME
    SELECT * FROM held_before WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device
) AS e
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
WHERE e.requested_bytes IS NOT NULL
    AND ($from_ns::BIGINT IS NULL OR e.time_ns + coalesce(s.offset_ns, 0) >= $from_ns)
    AND ($until_ns::BIGINT IS NULL OR e.time_ns + coalesce(s.offset_ns, 0) <= $until_ns)
ORDER BY e.seq;
