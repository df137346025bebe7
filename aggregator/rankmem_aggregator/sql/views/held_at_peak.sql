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
CREATE OR REPLACE MACRO held_at_peak(of_session, of_group, of_rank := NULL) AS TABLE
WITH top AS MATERIALIZED (
    SELECT attempt, rank, device, peak_seq
    FROM peak_by_rank
    WHERE session_id = of_session AND is_rank_peak AND (of_rank IS NULL OR rank = of_rank)
),
part AS (
    SELECT
        attempt,
        rank,
        device,
        group_of(
            of_group, operator, module, coalesce(forward_stack_id, stack_id)::VARCHAR, category, phase, step,
            annotation, stream, component
        ) AS group_key,
        sum(size_bytes) AS live_bytes,
        count(*) AS num_live,
        0 AS allocated_bytes,
        0 AS num_allocations,
        max(size_bytes) AS largest_bytes
    FROM live_at_points(
        of_session, (SELECT list({attempt: attempt, rank: rank, device: device, seq: peak_seq}) FROM top)
    )
    GROUP BY attempt, rank, device, group_key
    UNION ALL
    SELECT
        attempt,
        rank,
        device,
        group_of(
            of_group, operator, module, coalesce(forward_stack_id, stack_id)::VARCHAR, category, phase, step,
            annotation, stream, component
        ),
        0,
        0,
        coalesce(sum(size_bytes) FILTER (WHERE NOT preexisting), 0),
        count(*) FILTER (WHERE NOT preexisting),
        max(size_bytes)
    FROM made_block(of_session, of_group)
    SEMI JOIN top USING (attempt, rank, device)
    GROUP BY ALL
)
SELECT
    p.attempt,
    p.rank,
    p.device,
    split_part(p.device, ':', 1) AS device_type,
    CASE WHEN of_group = 'line' THEN s.line ELSE p.group_key END AS group_name,
    sum(p.live_bytes)::BIGINT AS live_bytes_at_peak,
    sum(p.num_live)::BIGINT AS live_allocations_at_peak,
    sum(p.allocated_bytes)::BIGINT AS allocated_bytes,
    sum(p.num_allocations)::BIGINT AS num_allocations,
    max(p.largest_bytes) AS largest_bytes
FROM part AS p
LEFT JOIN stack AS s ON of_group = 'line' AND s.stack_id = CASE WHEN of_group = 'line' THEN p.group_key::BIGINT END
GROUP BY p.attempt, p.rank, p.device, group_name
ORDER BY p.rank, p.device, live_bytes_at_peak DESC, allocated_bytes DESC, group_name;

COMMENT ON MACRO TABLE held_at_peak IS 'Bytes alive at each rank''s own peak and allocated in all, by any grouping of blocks.';
