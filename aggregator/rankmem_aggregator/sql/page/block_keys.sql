-- Question: By which values is one block of a device of a rank sorted?
-- Parameters:
--   session, attempt, rank, device: which device
--   offset_ns (ns): add to its host's times for the common clock
--   seq, until_ns: the instant of its category, as in block_of_device
--   at_ns (ns, common clock): the instant of its age
--   block (position): its id
--   by_line: true where its lines are asked for
-- Columns:
--   size, category, ...: as in blocks, named as its parameter sort names them
WITH
line AS MATERIALIZED (
    SELECT stack_id, line FROM stack
)
SELECT
    b.size_bytes AS size,
    b.category,
    b.operator,
    b.module,
    s.line,
    f.line AS forward_line,
    b.phase,
    b.step,
    b.stream,
    b.pool,
    b.component,
    b.annotation,
    b.address,
    CASE WHEN NOT b.preexisting THEN b.allocated_ns END AS allocated,
    b.freed_ns AS freed,
    b.free_requested_ns AS free_requested,
    CASE WHEN NOT b.preexisting THEN least(b.freed_ns, $at_ns) - b.allocated_ns END AS age,
    CASE WHEN NOT b.preexisting THEN b.duration_ns END AS life,
    b.allocation_id AS id,
    b.stack_id AS stack,
    b.preexisting::BIGINT AS preexisting,
    b.recomputed::BIGINT AS recomputed
FROM block_of_device(
    $session, $attempt::INTEGER, $rank::INTEGER, $device, $offset_ns::BIGINT,
    until_seq := $seq::BIGINT, until_ns := $until_ns::BIGINT
) AS b
LEFT JOIN line AS s ON $by_line AND s.stack_id = b.stack_id
LEFT JOIN line AS f ON $by_line AND f.stack_id = b.forward_stack_id
CROSS JOIN unstreamed
WHERE b.allocation_id = $block::BIGINT
ORDER BY b.allocation_id;
