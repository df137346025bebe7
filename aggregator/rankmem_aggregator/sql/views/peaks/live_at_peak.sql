-- Question: What was alive on each rank at its own peak? Exact.
-- Parameters:
--   of_session: session id
--   of_rank: global rank; NULL, the default, for all
--   of_attempt: which start of the workers; NULL, the default, for the one with each rank's highest peak
-- Columns:
--   all columns of the view allocation, of the attempt that was asked for; category: what the bytes meant then
--   device_type: cpu, cuda, ...
--   peak_time_ns (ns, common clock): the rank's peak
--   line: the line of the project that made it
--   forward_line: of a block of backward the line of the forward call it belongs to
--   frames: its Python stack
--   age_ns (ns): from its alloc to the peak; NULL for blocks older than the recording
-- Scatter: hosts
CREATE OR REPLACE MACRO live_at_peak(of_session, of_rank := NULL, of_attempt := NULL) AS TABLE
SELECT
    a.* EXCLUDE (first_category, point_seq),
    CASE WHEN NOT a.preexisting THEN utc_of(a.allocated_ns) END AS allocated_utc,
    utc_of(a.freed_ns) AS freed_utc,
    p.peak_time_ns,
    s.line,
    f.line AS forward_line,
    s.frames,
    CASE WHEN NOT a.preexisting THEN p.peak_time_ns - a.allocated_ns END AS age_ns
FROM live_at_points(of_session, (
    SELECT list({attempt: attempt, rank: rank, device: device, seq: peak_seq})
    FROM peak_by_rank
    WHERE session_id = of_session
        AND (of_rank IS NULL OR rank = of_rank)
        AND CASE WHEN of_attempt IS NULL THEN is_rank_peak ELSE attempt = of_attempt END
)) AS a
INNER JOIN peak_by_rank AS p USING (session_id, attempt, rank, device)
LEFT JOIN stack AS s USING (stack_id)
LEFT JOIN stack AS f ON f.stack_id = a.forward_stack_id
ORDER BY a.rank, a.device, a.size_bytes DESC, a.allocation_id;

COMMENT ON MACRO TABLE live_at_peak IS 'The blocks alive on each rank at its own peak, exact by sequence.';
