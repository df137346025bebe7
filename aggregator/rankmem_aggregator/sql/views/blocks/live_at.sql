-- Question: Which blocks of a rank were alive at an instant?
-- Parameters:
--   of_session: session id
--   of_attempt: which start of the workers
--   of_rank: global rank
--   of_device: device type and index; NULL for all
--   at_ns (ns, common clock): the instant; events at that very nanosecond have happened. After the end of the
--     process: what it held when it ended
-- Columns:
--   all columns of the view allocation; category: what the bytes meant then
--   line: the line of the project that made it
--   forward_line: of a block of backward the line of the forward call it belongs to
--   frames: its Python stack
--   age_ns (ns): from its alloc to the instant; NULL for blocks older than the recording
-- Scatter: none
CREATE OR REPLACE MACRO live_at(of_session, of_attempt, of_rank, of_device, at_ns) AS TABLE
WITH meaning AS (
    SELECT c.device, c.allocation_id, arg_max(c.category, (c.seq, c.time_ns)) AS category
    FROM category_change AS c
    LEFT JOIN rank_span AS r USING (session_id, attempt, rank)
    WHERE c.session_id = of_session
        AND c.attempt = of_attempt
        AND c.rank = of_rank
        AND (of_device IS NULL OR c.device = of_device)
        AND c.time_ns + coalesce(r.offset_ns, 0) <= at_ns
    GROUP BY c.device, c.allocation_id
)
SELECT
    a.* EXCLUDE (first_category),
    coalesce(m.category, a.first_category) AS category,
    CASE WHEN NOT a.preexisting THEN utc_of(a.allocated_ns) END AS allocated_utc,
    utc_of(a.freed_ns) AS freed_utc,
    s.line,
    f.line AS forward_line,
    s.frames,
    CASE WHEN NOT a.preexisting THEN at_ns - a.allocated_ns END AS age_ns
FROM allocation_life AS a
LEFT JOIN meaning AS m USING (device, allocation_id)
LEFT JOIN stack AS s USING (stack_id)
LEFT JOIN stack AS f ON f.stack_id = a.forward_stack_id
WHERE a.session_id = of_session
    AND a.attempt = of_attempt
    AND a.rank = of_rank
    AND (of_device IS NULL OR a.device = of_device)
    AND coalesce(a.allocated_ns <= at_ns, a.preexisting)
    AND (a.freed_ns IS NULL OR a.freed_ns > at_ns)
ORDER BY a.size_bytes DESC, a.device, a.allocation_id;

COMMENT ON MACRO TABLE live_at IS 'The blocks of a rank alive at an instant of the common clock.';
