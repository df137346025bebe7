-- Question: How many events would be read for a range of time, event by event, on devices of one type?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...
--   width_s (s): the widest part of the log that is taken as a whole; below 4 a row of memory_bucket
--   host_from_ns, host_until_ns (ns): the range, as the earliest and the latest of the hosts' clocks has it
-- Columns:
--   events: of the parts that lie in or touch it
--   first_ns (ns, the hosts' clocks): the first of these; NULL without any
SELECT coalesce(sum(events), 0)::BIGINT AS events, min(first_ns) AS first_ns
FROM memory_cell($session, $width_s)
WHERE split_part(device, ':', 1) = $device_type
    AND cell_ns BETWEEN $host_from_ns - greatest($width_s::BIGINT, 1) * 1000000000 AND $host_until_ns
    AND first_ns <= $host_until_ns
    AND last_ns >= $host_from_ns
ORDER BY events;
