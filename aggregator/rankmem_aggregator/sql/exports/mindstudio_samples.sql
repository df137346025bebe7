-- Question: How much did the process of a rank, and all processes, hold on a device?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   offset_ns (ns): added to its host's times
--   from_ns, until_ns (ns, common clock): the range; NULL: no bound
-- Columns:
--   time_ns (ns, common clock): when
--   app_reserved_bytes, device_used_bytes (bytes): the process, all processes; NULL where not known
SELECT time_ns + $offset_ns::BIGINT AS time_ns, app_reserved_bytes, device_used_bytes
FROM process_sample
WHERE session_id = $session
    AND attempt = $attempt
    AND rank = $rank
    AND device = $device
    AND ($from_ns::BIGINT IS NULL OR time_ns + $offset_ns::BIGINT >= $from_ns)
    AND ($until_ns::BIGINT IS NULL OR time_ns + $offset_ns::BIGINT <= $until_ns)
ORDER BY seq, time_ns;
