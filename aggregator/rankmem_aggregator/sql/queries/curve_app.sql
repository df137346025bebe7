-- Question: What did a rank's whole process hold on a device over time?
-- Parameters:
--   session (text): session id
--   attempt (count): which start of the workers
--   rank (count): global rank
--   device (text): device type and index
--   from_ns (ns, common clock): the beginning; NULL for the rank's own
--   until_ns (ns, common clock): the end; NULL for the rank's own
-- Columns:
--   time_ns (ns, common clock): when it was sampled
--   app_reserved (bytes): held by the whole process
--   app (bytes): what of it lies beyond the allocator
-- Scatter: none
SELECT time_ns, app_reserved_bytes AS app_reserved, app_bytes AS app
FROM app_curve
WHERE session_id = $session
    AND attempt = $attempt
    AND rank = $rank
    AND device = $device
    AND ($from_ns::BIGINT IS NULL OR time_ns >= $from_ns)
    AND ($until_ns::BIGINT IS NULL OR time_ns <= $until_ns)
ORDER BY seq;
