-- Question: Which events does a device of a rank have in a part of its log, and how high did it stand after each?
-- Parameters:
--   session (text): session id
--   attempt, rank, device: which device
--   offset_ns (ns): added to its host's times
--   first_seq, last_seq: the part of the log
-- Columns:
--   seq: position in the rank's log
--   time_ns (ns, common clock): when
--   requested (bytes): requested bytes after it
SELECT seq, time_ns + $offset_ns AS time_ns, requested_bytes AS requested
FROM memory_event
WHERE session_id = $session
    AND attempt = $attempt
    AND rank = $rank
    AND device = $device
    AND requested_bytes IS NOT NULL
    AND seq BETWEEN $first_seq AND $last_seq
ORDER BY seq;
