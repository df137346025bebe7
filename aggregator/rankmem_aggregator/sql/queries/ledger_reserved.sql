-- Question: What had the allocator of a device reserved at a position in its rank's log?
-- Parameters:
--   session (text): session id
--   attempt (count): which start of the workers
--   rank (count): global rank
--   device (text): device type and index
--   seq (count): the position
-- Columns:
--   reserved_bytes (bytes): after the last event before it; where there is none 0, or NULL for a device whose memory is in
--     part older than the recording
-- Scatter: none
SELECT r.reserved_bytes
FROM (
    SELECT seq, reserved_bytes
    FROM memory_event
    WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device AND seq < $seq
    UNION ALL
    SELECT -1, CASE WHEN count(*) = 0 THEN 0 END
    FROM older_segment
    WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device
) AS r
CROSS JOIN unstreamed
ORDER BY r.seq DESC
LIMIT 1;
