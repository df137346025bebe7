-- Question: What held the memory of the job at one instant, and allocated how much in all, by any grouping?
-- Parameters:
--   session (text): session id
--   by (text): operator, module, line, category, phase, step, annotation, stream or component
--   per_rank (boolean): a row for each rank and group; else the ranks added up
--   rank (count): global rank; NULL for all, added up
--   device (text): device type and index; NULL for all, each device type separately
--   time_ns (ns, common clock): the instant
-- Columns:
--   device_type: cpu, cuda, ...
--   rank: global rank where per_rank, else NULL
--   group_name: the group; NULL for blocks without one
--   live_bytes_at_time (bytes): of its blocks alive then. Of category: what they meant then
--   live_allocations_at_time: how many
--   allocated_bytes (bytes): allocated, over the whole session; blocks older than the recording left out
--   num_allocations: how many
--   largest_bytes (bytes): the largest block of all
--   num_ranks: ranks that took part
-- Scatter: sums
WITH point AS MATERIALIZED (
    SELECT attempt, rank, device, seq
    FROM held_at($session, $time_ns)
    WHERE ($rank::INTEGER IS NULL OR rank = $rank) AND ($device::VARCHAR IS NULL OR device = $device)
),
part AS (
    SELECT
        device_type, group_name, rank, live_bytes, live_allocations, 0 AS allocated_bytes, 0 AS num_allocations,
        largest_bytes
    FROM held_at_points(
        $session, $by, (SELECT list({attempt: attempt, rank: rank, device: device, seq: seq}) FROM point)
    )
    UNION ALL
    SELECT split_part(device, ':', 1), group_name, rank, 0, 0, allocated_bytes, num_allocations, largest_bytes
    FROM made_total($session, $by, of_rank := $rank::INTEGER)
    WHERE $device::VARCHAR IS NULL OR device = $device
)
SELECT
    device_type,
    CASE WHEN $per_rank::BOOLEAN THEN p.rank END AS rank,
    group_name,
    sum(live_bytes)::BIGINT AS live_bytes_at_time,
    sum(live_allocations)::BIGINT AS live_allocations_at_time,
    sum(allocated_bytes)::BIGINT AS allocated_bytes,
    sum(num_allocations)::BIGINT AS num_allocations,
    max(largest_bytes) AS largest_bytes,
    count(DISTINCT p.rank) AS num_ranks
FROM part AS p
GROUP BY ALL
ORDER BY live_bytes_at_time DESC, allocated_bytes DESC, device_type, rank, group_name;
