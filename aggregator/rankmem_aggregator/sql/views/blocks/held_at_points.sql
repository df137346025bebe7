-- Question: What did each group of blocks hold, on several devices of ranks, each right after an event of its own? Exact.
-- Parameters:
--   of_session: session id
--   of_group: operator, module, line, category, phase, step, annotation, stream or component
--   of_points: list of {attempt, rank, device, seq}: after which event of which device of a rank
-- Columns:
--   attempt, rank, device, device_type: whose
--   point_seq: the event
--   group_name: the group; NULL for blocks without one. Of category: what the bytes meant then
--   live_bytes (bytes): of its blocks alive then
--   live_allocations: how many
--   largest_bytes (bytes): the largest of them
-- Scatter: hosts
CREATE OR REPLACE MACRO held_at_points(of_session, of_group, of_points) AS TABLE
SELECT
    b.attempt,
    b.rank,
    b.device,
    b.device_type,
    b.point_seq,
    group_of_block(of_group, b) AS group_name,
    sum(b.size_bytes)::BIGINT AS live_bytes,
    count(*) AS live_allocations,
    max(b.size_bytes) AS largest_bytes
FROM (
    SELECT l.*, s.line
    FROM live_at_points(of_session, of_points) AS l
    LEFT JOIN stack AS s ON of_group = 'line' AND s.stack_id = coalesce(l.forward_stack_id, l.stack_id)
) AS b
GROUP BY b.attempt, b.rank, b.device, b.device_type, b.point_seq, group_name
ORDER BY b.attempt, b.rank, b.device, b.point_seq, live_bytes DESC, group_name;

COMMENT ON MACRO TABLE held_at_points IS 'Bytes alive after an event of each given device, by any grouping of blocks.';
