-- Question: What was alive on a rank at its own peak? The largest first.
-- Parameters:
--   session (text): session id
--   rank (count): global rank
--   attempt (count): which start of the workers; NULL for the one with the rank's highest peak
--   device (text): device type and index; NULL for all, each at its own peak
-- Columns:
--   attempt, rank, device: whose
--   allocation_id: seq of its alloc event; negative for blocks older than the recording
--   address: on its device
--   size_bytes (bytes): requested size
--   operator: the operator call that allocated; NULL outside of calls
--   line: file:line of the innermost frame inside the project
--   stack: all frames as "file:line function", the one nearest to the operator first
--   category, module, phase, step, stream, component: as in the view allocation
--   allocated_ns (ns, common clock): when; NULL for blocks older than the recording
--   age_ns (ns): from its alloc to the peak
--   preexisting: true for a block older than the recording
SELECT
    a.attempt,
    a.rank,
    a.device,
    a.allocation_id,
    a.address,
    a.size_bytes,
    a.operator,
    s.line,
    coalesce(s.frames, []) AS stack,
    a.category,
    a.module,
    a.phase,
    a.step,
    a.stream,
    a.component,
    a.allocated_ns,
    p.peak_time_ns - a.allocated_ns AS age_ns,
    a.preexisting
FROM allocation AS a
INNER JOIN peak_by_rank AS p USING (session_id, attempt, rank, device)
LEFT JOIN stack AS s USING (stack_id)
WHERE a.session_id = $session
    AND a.rank = $rank
    AND p.session_id = $session
    AND p.rank = $rank
    AND CASE WHEN $attempt::INTEGER IS NULL THEN p.is_rank_peak ELSE a.attempt = $attempt END
    AND ($device::VARCHAR IS NULL OR a.device = $device)
    AND a.allocation_id <= p.peak_seq
    AND (a.freed_seq IS NULL OR a.freed_seq > p.peak_seq)
ORDER BY a.size_bytes DESC, a.attempt, a.device, a.allocation_id;
