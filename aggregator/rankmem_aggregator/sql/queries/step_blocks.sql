-- Question: Which blocks were alive during a part of a rank's log, from when to when, and who made them?
-- Parameters:
--   session (text): session id
--   attempt (count): which start of the workers
--   rank (count): global rank
--   device (text): device type and index
--   from_seq (count): of the rank's log; blocks freed up to it are left out
--   to_seq (count): blocks made after it are left out
--   at_most (count): rows at most, the oldest blocks first
-- Columns:
--   allocation_id, freed_seq, category, operator, module, phase, recomputed, stream, pool: as in allocation
--   bytes: requested
--   line: of the project, nearest to the operator that made the block
--   forward_line: of a block of backward that of the forward call
--   function, forward_function: those of these lines
-- Scatter: none
SELECT
    b.allocation_id,
    b.freed_seq,
    coalesce(b.requested_bytes, b.size_bytes) AS bytes,
    b.category,
    b.operator,
    b.module,
    b.phase,
    l.line,
    f.line AS forward_line,
    l.function,
    f.function AS forward_function,
    coalesce(b.recomputed, false) AS recomputed,
    b.stream,
    b.pool
FROM allocation AS b
LEFT JOIN stack AS l ON b.stack_id = l.stack_id
LEFT JOIN stack AS f ON b.forward_stack_id = f.stack_id
CROSS JOIN unstreamed
WHERE b.session_id = $session
    AND b.attempt = $attempt
    AND b.rank = $rank
    AND b.device = $device
    AND b.allocation_id <= $to_seq
    AND (b.freed_seq IS NULL OR b.freed_seq > $from_seq)
ORDER BY b.allocation_id
LIMIT $at_most;
