-- Question: How many events lie in each cell of time, on devices of one type together?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...
--   width_s (s): the widest part of the log that is taken as a whole; below 4 a row of memory_bucket
-- Columns:
--   first_ns, last_ns (ns, the hosts' clocks): the first and the last of its events
--   events: how many
SELECT min(first_ns) AS first_ns, max(last_ns) AS last_ns, sum(events)::BIGINT AS events
FROM memory_cell($session, $width_s)
WHERE split_part(device, ':', 1) = $device_type
GROUP BY cell_ns // (greatest($width_s, 1)::BIGINT * 1000000000)
ORDER BY first_ns, last_ns, events;
