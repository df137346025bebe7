-- Question: What did each group of blocks hold at each rank's own peak, and how much was allocated for it in all? Exact.
-- Parameters:
--   of_session: session id
--   of_group: operator, module, line, category, phase, step, annotation, stream or component
--   of_rank: global rank; NULL, the default, for all
-- Columns:
--   attempt, rank, device, device_type: whose, on the attempt with the rank's highest peak
--   group_name: the group; NULL for blocks without one. Of line: of the forward call, for blocks of backward
--   live_bytes_at_peak (bytes): of its blocks alive at the peak. Of category: what the bytes meant then
--   live_allocations_at_peak: how many
--   allocated_bytes (bytes): allocated in all, blocks older than the recording left out. Of category: meant last
--   num_allocations: how many
--   largest_bytes (bytes): the largest block of all
-- Scatter: hosts
CREATE OR REPLACE MACRO held_at_peak(of_session, of_group, of_rank := NULL) AS TABLE
WITH top AS MATERIALIZED (
    SELECT attempt, rank, device, peak_seq
    FROM peak_by_rank
    WHERE session_id = of_session AND is_rank_peak AND (of_rank IS NULL OR rank = of_rank)
),
part AS (
    SELECT attempt, rank, device, group_name, live_bytes, live_allocations, 0 AS allocated_bytes, 0 AS num_allocations,
        largest_bytes
    FROM held_at_points(
        of_session, of_group, (SELECT list({attempt: attempt, rank: rank, device: device, seq: peak_seq}) FROM top)
    )
    UNION ALL
    -- Added up before it is narrowed to those attempts: a join of every block would cost thrice the sum.
    SELECT attempt, rank, device, group_name, 0, 0, allocated_bytes, num_allocations, largest_bytes
    FROM made_total(of_session, of_group, of_rank := of_rank)
    SEMI JOIN top USING (attempt, rank, device)
)
SELECT
    attempt,
    rank,
    device,
    split_part(device, ':', 1) AS device_type,
    group_name,
    sum(live_bytes)::BIGINT AS live_bytes_at_peak,
    sum(live_allocations)::BIGINT AS live_allocations_at_peak,
    sum(allocated_bytes)::BIGINT AS allocated_bytes,
    sum(num_allocations)::BIGINT AS num_allocations,
    max(largest_bytes) AS largest_bytes
FROM part
GROUP BY attempt, rank, device, group_name
ORDER BY rank, device, live_bytes_at_peak DESC, allocated_bytes DESC, group_name;

COMMENT ON MACRO TABLE held_at_peak IS 'Bytes alive at each rank''s own peak and allocated in all, by any grouping of blocks.';
