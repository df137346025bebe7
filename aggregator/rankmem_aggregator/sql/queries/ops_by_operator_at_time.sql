-- Question: Which operators held the memory of the job at one instant?
-- Parameters:
--   session (text): session id
--   rank (count): global rank; NULL for all, added up
--   device (text): device type and index; NULL for all, each device type apart
--   time_ns (ns, common clock): the instant
-- Columns:
--   device_type: cpu, cuda, ...
--   operator: the operator call that allocated; NULL outside of calls
--   live_bytes_at_time (bytes): of its blocks alive then
--   live_allocations_at_time: how many
--   allocated_bytes (bytes): allocated, over the whole session; blocks older than the recording left out
--   num_allocations: how many
--   largest_bytes (bytes): the largest block of all
--   num_ranks: ranks that took part
SELECT
    a.device_type,
    a.operator,
    coalesce(sum(a.size_bytes) FILTER (WHERE a.alive_at_time), 0)::BIGINT AS live_bytes_at_time,
    count(*) FILTER (WHERE a.alive_at_time) AS live_allocations_at_time,
    coalesce(sum(a.size_bytes) FILTER (WHERE NOT a.preexisting), 0)::BIGINT AS allocated_bytes,
    count(*) FILTER (WHERE NOT a.preexisting) AS num_allocations,
    max(a.size_bytes) AS largest_bytes,
    count(DISTINCT a.rank) AS num_ranks
FROM allocation_at($session, $time_ns) AS a
WHERE ($rank::INTEGER IS NULL OR a.rank = $rank) AND ($device::VARCHAR IS NULL OR a.device = $device)
GROUP BY a.device_type, a.operator
ORDER BY live_bytes_at_time DESC, allocated_bytes DESC, a.device_type, a.operator;
