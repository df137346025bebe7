-- Question: What was alive on each rank at its own peak? Exact.
-- Parameters:
--   of_session: session id
-- Columns:
--   all columns of the view allocation, of each rank's attempt with its highest peak; category: what the bytes
--     meant then
--   device_type: cpu, cuda, ...
--   peak_time_ns (ns, common clock): the rank's peak
--   line: the line of the project that made it
--   frames: its Python stack
--   age_ns (ns): from its alloc to the peak; NULL for blocks older than the recording
CREATE OR REPLACE MACRO live_at_peak(of_session) AS TABLE
SELECT
    a.* EXCLUDE (first_category, point_seq),
    utc_of(a.allocated_ns) AS allocated_utc,
    utc_of(a.freed_ns) AS freed_utc,
    p.peak_time_ns,
    s.line,
    s.frames,
    p.peak_time_ns - a.allocated_ns AS age_ns
FROM live_at_points(of_session, (
    SELECT list({attempt: attempt, rank: rank, device: device, seq: peak_seq})
    FROM peak_by_rank
    WHERE session_id = of_session AND is_rank_peak
)) AS a
INNER JOIN peak_by_rank AS p USING (session_id, attempt, rank, device)
LEFT JOIN stack AS s USING (stack_id)
ORDER BY a.rank, a.device, a.size_bytes DESC, a.allocation_id;

COMMENT ON MACRO TABLE live_at_peak IS 'The blocks alive on each rank at its own peak, exact by sequence.';
