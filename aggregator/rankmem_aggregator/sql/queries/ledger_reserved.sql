-- Question: What had the allocator of a device reserved at a position in its rank's log?
-- Parameters:
--   session (text): session id
--   attempt (count): which start of the workers
--   rank (count): global rank
--   device (text): device type and index
--   seq (count): the position
-- Columns:
--   reserved_bytes (bytes): after the last event before it; no row where there is none
-- Scatter: none
SELECT e.reserved_bytes
FROM memory_event AS e
CROSS JOIN unstreamed
WHERE e.session_id = $session
    AND e.attempt = $attempt
    AND e.rank = $rank
    AND e.device = $device
    AND e.seq < $seq
ORDER BY e.seq DESC
LIMIT 1;
