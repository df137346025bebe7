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
--   category: what the bytes meant at the peak
--   module, phase, step, stream, component: as in the view allocation
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
FROM live_at_points($session, (
    SELECT list({attempt: attempt, rank: rank, device: device, seq: peak_seq})
    FROM peak_by_rank
    WHERE session_id = $session
        AND rank = $rank
        AND CASE WHEN $attempt::INTEGER IS NULL THEN is_rank_peak ELSE attempt = $attempt END
        AND ($device::VARCHAR IS NULL OR device = $device)
)) AS a
INNER JOIN peak_by_rank AS p USING (session_id, attempt, rank, device)
LEFT JOIN stack AS s USING (stack_id)
ORDER BY a.size_bytes DESC, a.attempt, a.device, a.allocation_id;
