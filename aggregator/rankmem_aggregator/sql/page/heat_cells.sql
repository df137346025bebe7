-- Question: How many events at least lie in a range of time, on devices of one type, by cells of memory_level?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...
--   host_from_ns, host_until_ns (ns): the range, on a host's clock
-- Columns:
--   events: of the cells of 4 s, and of the rows of memory_bucket beyond, that begin in it and end in it
SELECT coalesce(sum(events), 0)::BIGINT AS events
FROM memory_cell($session, 4)
WHERE split_part(device, ':', 1) = $device_type AND cell_ns BETWEEN $host_from_ns AND $host_until_ns - 4000000000
ORDER BY events;
