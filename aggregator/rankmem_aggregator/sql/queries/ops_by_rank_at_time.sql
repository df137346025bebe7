-- Question: Which operators of which rank held the memory of the job at one instant?
-- Parameters:
--   session (text): session id
--   rank (count): global rank; NULL for all, added up
--   device (text): device type and index; NULL for all, each device type apart
--   time_ns (ns, common clock): the instant
-- Columns:
--   device_type: cpu, cuda, ...
--   rank: global rank
--   operator: the operator call that allocated; NULL outside of calls
--   live_bytes_at_time (bytes): of its blocks alive then
--   live_allocations_at_time: how many
--   allocated_bytes (bytes): allocated, over the whole session; blocks older than the recording left out
--   num_allocations: how many
--   largest_bytes (bytes): the largest block of all
--   num_ranks: ranks that took part
WITH point AS MATERIALIZED (
    SELECT attempt, rank, device, seq
    FROM held_at($session, $time_ns)
    WHERE ($rank::INTEGER IS NULL OR rank = $rank) AND ($device::VARCHAR IS NULL OR device = $device)
),
part AS (
    SELECT
        device_type, rank, group_name AS operator, live_bytes, live_allocations, 0 AS allocated_bytes,
        0 AS num_allocations, largest_bytes
    FROM held_at_points(
        $session, 'operator', (SELECT list({attempt: attempt, rank: rank, device: device, seq: seq}) FROM point)
    )
    UNION ALL
    SELECT split_part(device, ':', 1), rank, group_name, 0, 0, allocated_bytes, num_allocations, largest_bytes
    FROM made_total($session, 'operator', of_rank := $rank::INTEGER)
    WHERE $device::VARCHAR IS NULL OR device = $device
)
SELECT
    device_type,
    rank,
    operator,
    sum(live_bytes)::BIGINT AS live_bytes_at_time,
    sum(live_allocations)::BIGINT AS live_allocations_at_time,
    sum(allocated_bytes)::BIGINT AS allocated_bytes,
    sum(num_allocations)::BIGINT AS num_allocations,
    max(largest_bytes) AS largest_bytes,
    1::BIGINT AS num_ranks
FROM part
GROUP BY device_type, rank, operator
ORDER BY live_bytes_at_time DESC, allocated_bytes DESC, device_type, rank, operator;
