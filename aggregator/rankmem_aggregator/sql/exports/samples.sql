-- Question: How much did the process of a rank hold on a device, seen from outside the allocator?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   offset_ns (ns): added to its host's times
--   from_ns, until_ns (ns, common clock): the range
-- Columns:
--   time_ns (ns, common clock): when
--   app_reserved_bytes (bytes): held by the whole process
SELECT time_ns + $offset_ns::BIGINT AS time_ns, app_reserved_bytes
FROM process_sample
WHERE session_id = $session
    AND attempt = $attempt
    AND rank = $rank
    AND device = $device
    AND app_reserved_bytes IS NOT NULL
    AND time_ns + $offset_ns::BIGINT BETWEEN $from_ns AND $until_ns
ORDER BY time_ns;
