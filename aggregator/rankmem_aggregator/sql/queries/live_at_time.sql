-- Question: What was alive on a rank at an instant? The largest first.
-- Parameters:
--   session (text): session id
--   rank (count): global rank
--   attempt (count): which start of the workers; NULL for the last one that had started by then
--   device (text): device type and index; NULL for all
--   time_ns (ns, common clock): the instant; events at that very nanosecond have happened. After the end of the
--     process: what it held when it ended
-- Columns:
--   attempt, rank, device: whose
--   allocation_id: seq of its alloc event; negative for blocks older than the recording
--   address: on its device
--   size_bytes (bytes): requested size
--   operator: the operator call that allocated; NULL outside of calls
--   line: file:line of the innermost frame inside the project
--   stack: all frames as "file:line function", the one nearest to the operator first
--   category: what the bytes meant then
--   module, phase, step, stream, component: as in the view allocation
--   allocated_ns (ns, common clock): when; NULL for blocks older than the recording
--   age_ns (ns): from its alloc to the instant
--   preexisting: true for a block older than the recording
WITH started AS (
    SELECT attempt
    FROM rank_span
    WHERE session_id = $session
        AND rank = $rank
        AND CASE WHEN $attempt::INTEGER IS NULL THEN coalesce(started_ns <= $time_ns, true) ELSE attempt = $attempt END
    ORDER BY attempt DESC
    LIMIT 1
),
meaning AS (
    SELECT c.attempt, c.device, c.allocation_id, arg_max(c.category, (c.seq, c.time_ns)) AS category
    FROM category_change AS c
    INNER JOIN started USING (attempt)
    LEFT JOIN rank_span AS r USING (session_id, attempt, rank)
    WHERE c.session_id = $session AND c.rank = $rank AND c.time_ns + coalesce(r.offset_ns, 0) <= $time_ns
    GROUP BY c.attempt, c.device, c.allocation_id
)
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
    coalesce(m.category, a.first_category) AS category,
    a.module,
    a.phase,
    a.step,
    a.stream,
    a.component,
    a.allocated_ns,
    $time_ns - a.allocated_ns AS age_ns,
    a.preexisting
FROM allocation_life AS a
INNER JOIN started USING (attempt)
LEFT JOIN meaning AS m USING (attempt, device, allocation_id)
LEFT JOIN stack AS s USING (stack_id)
WHERE a.session_id = $session
    AND a.rank = $rank
    AND ($device::VARCHAR IS NULL OR a.device = $device)
    AND (a.preexisting OR a.allocated_ns <= $time_ns)
    AND (a.freed_ns IS NULL OR a.freed_ns > $time_ns)
ORDER BY a.size_bytes DESC, a.device, a.allocation_id;
