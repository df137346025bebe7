-- Question: Which operator calls of a rank touch a range of time?
-- Parameters:
--   session (text), attempt, rank: the rank
--   offset_ns (ns): added to its host's times
--   from_ns, until_ns (ns, common clock): the range
-- Columns:
--   call_id, operator, module, phase, step, thread, sequence_first, sequence_last, forward_call_id, stack_id,
--     annotation, allocated_bytes, freed_bytes, allocations: as in operator_call
--   started_ns, ended_ns (ns, common clock): ended_ns is NULL where it never ended
SELECT
    call_id,
    operator,
    module,
    phase,
    step,
    thread,
    sequence_first,
    sequence_last,
    forward_call_id,
    stack_id,
    annotation,
    allocated_bytes,
    freed_bytes,
    allocations,
    started_ns + $offset_ns::BIGINT AS started_ns,
    ended_ns + $offset_ns::BIGINT AS ended_ns
FROM operator_call
WHERE session_id = $session
    AND attempt = $attempt
    AND rank = $rank
    AND started_ns + $offset_ns::BIGINT <= $until_ns
    AND (ended_ns IS NULL OR ended_ns + $offset_ns::BIGINT >= $from_ns)
ORDER BY started_ns, call_id;
