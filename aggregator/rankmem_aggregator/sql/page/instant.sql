-- Question: Which event of a device of a rank was the last at or before a position of its log, and what did it leave?
-- Parameters:
--   session, attempt, rank, device: which device
--   offset_ns (ns): add to its host's times for the common clock
--   seq (position): NULL for the last event of all
-- Columns:
--   seq: that event
--   time_ns (ns, common clock): when
--   requested_bytes (bytes): alive after it
SELECT e.seq, e.time_ns + $offset_ns::BIGINT AS time_ns, e.requested_bytes
FROM memory_event AS e
WHERE e.session_id = $session
    AND e.attempt = $attempt
    AND e.rank = $rank
    AND e.device = $device
    AND ($seq::BIGINT IS NULL OR e.seq <= $seq)
ORDER BY e.seq DESC
LIMIT 1;
