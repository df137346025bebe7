-- Question: Which lines of the project held the memory at the peak, each rank at its own, and allocated how much in all?
-- Parameters:
--   session (text): session id
--   rank (count): global rank; NULL for all, added up
--   device (text): device type and index; NULL for all, each device type apart
--   order (text): peak, by the bytes alive then; or total, by the bytes allocated
-- Columns:
--   device_type: cpu, cuda, ...
--   line: file:line of the innermost frame inside the project, else of the innermost; NULL without a stack
--   live_bytes_at_peak (bytes): of its blocks alive at the rank's own peak
--   live_allocations_at_peak: how many
--   allocated_bytes (bytes): allocated, on the attempt with each rank's highest peak; blocks older than the recording left out
--   num_allocations: how many
--   largest_bytes (bytes): the largest block of all
--   num_ranks: ranks that took part
SELECT
    a.device_type,
    s.line,
    coalesce(sum(a.size_bytes) FILTER (WHERE a.alive_at_peak), 0)::BIGINT AS live_bytes_at_peak,
    count(*) FILTER (WHERE a.alive_at_peak) AS live_allocations_at_peak,
    coalesce(sum(a.size_bytes) FILTER (WHERE NOT a.preexisting), 0)::BIGINT AS allocated_bytes,
    count(*) FILTER (WHERE NOT a.preexisting) AS num_allocations,
    max(a.size_bytes) AS largest_bytes,
    count(DISTINCT a.rank) AS num_ranks
FROM allocation_at_peak($session) AS a
LEFT JOIN stack AS s USING (stack_id)
WHERE ($rank::INTEGER IS NULL OR a.rank = $rank) AND ($device::VARCHAR IS NULL OR a.device = $device)
GROUP BY a.device_type, s.line
ORDER BY CASE WHEN $order = 'total' THEN allocated_bytes ELSE live_bytes_at_peak END DESC, a.device_type, s.line;
