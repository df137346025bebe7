-- Question: How many events do the devices of one type have in a range of time?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...
--   host_from_ns, host_until_ns (ns, the hosts' clocks): the range
-- Columns:
--   events: in the buckets that lie in or touch it
SELECT coalesce(sum(events), 0)::BIGINT AS events
FROM memory_bucket
WHERE session_id = $session
    AND split_part(device, ':', 1) = $device_type
    AND bucket_ns BETWEEN $host_from_ns - 1000000000 AND $host_until_ns
ORDER BY events;
