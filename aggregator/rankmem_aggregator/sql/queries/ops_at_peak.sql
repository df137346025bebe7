-- Question: What held the memory at the peak, each rank at its own, and allocated how much in all, by any grouping?
-- Parameters:
--   session (text): session id
--   by (text): operator, module, line, category, phase, step, annotation, stream or component
--   per_rank (boolean): a row for each rank and group; else the ranks added up
--   rank (count): global rank; NULL for all, added up
--   device (text): device type and index; NULL for all, each device type separately
--   order (text): peak, by the bytes alive then; or total, by the bytes allocated
-- Columns:
--   device_type: cpu, cuda, ...
--   rank: global rank where per_rank, else NULL
--   group_name: the group; NULL for blocks without one
--   live_bytes_at_peak (bytes): of its blocks alive at the rank's own peak. Of category: what they meant then
--   live_allocations_at_peak: how many
--   allocated_bytes (bytes): allocated, on the attempt with each rank's highest peak; blocks older than the recording left out
--   num_allocations: how many
--   largest_bytes (bytes): the largest block of all
--   num_ranks: ranks that took part
-- Scatter: sums
SELECT * FROM (
    SELECT
        device_type,
        CASE WHEN $per_rank::BOOLEAN THEN p.rank END AS rank,
        group_name,
        sum(live_bytes_at_peak)::BIGINT AS live_bytes_at_peak,
        sum(live_allocations_at_peak)::BIGINT AS live_allocations_at_peak,
        sum(allocated_bytes)::BIGINT AS allocated_bytes,
        sum(num_allocations)::BIGINT AS num_allocations,
        max(largest_bytes) AS largest_bytes,
        count(DISTINCT p.rank) AS num_ranks
    FROM held_at_peak($session, $by, of_rank := $rank::INTEGER) AS p
    WHERE $device::VARCHAR IS NULL OR device = $device
    GROUP BY ALL
)
ORDER BY CASE WHEN $order = 'total' THEN allocated_bytes ELSE live_bytes_at_peak END DESC, device_type, rank, group_name;
