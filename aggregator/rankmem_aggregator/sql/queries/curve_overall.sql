-- Question: How did a device of a rank go up and down, event by event?
-- Parameters:
--   session (text): session id
--   attempt (count): which start of the workers
--   rank (count): global rank
--   device (text): device type and index
--   from_ns (ns, common clock): the beginning; NULL for the rank's own
--   until_ns (ns, common clock): the end; NULL for the rank's own
-- Columns:
--   time_ns (ns, common clock): of the event; or of a bucket without events, which has what is older than the recording
--   requested (bytes): requested bytes after it
--   allocated, active, reserved (bytes): the allocator's own; NULL where not known, and on cpu
WITH instant AS (
    SELECT seq, time_ns, requested_bytes, allocated_bytes, active_bytes, reserved_bytes
    FROM memory_event
    WHERE session_id = $session
        AND attempt = $attempt
        AND rank = $rank
        AND device = $device
        AND requested_bytes IS NOT NULL
    UNION ALL
    SELECT
        seq_last,
        last_ns,
        requested_last_bytes,
        allocated_last_bytes,
        active_last_bytes,
        reserved_last_bytes
    FROM memory_bucket
    WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device AND events = 0
)
SELECT
    e.time_ns + coalesce(s.offset_ns, 0) AS time_ns,
    e.requested_bytes AS requested,
    e.allocated_bytes AS allocated,
    e.active_bytes AS active,
    e.reserved_bytes AS reserved
FROM instant AS e
LEFT JOIN rank_span AS s ON s.session_id = $session AND s.attempt = $attempt AND s.rank = $rank
WHERE ($from_ns::BIGINT IS NULL OR e.time_ns + coalesce(s.offset_ns, 0) >= $from_ns)
    AND ($until_ns::BIGINT IS NULL OR e.time_ns + coalesce(s.offset_ns, 0) <= $until_ns)
ORDER BY e.seq;
