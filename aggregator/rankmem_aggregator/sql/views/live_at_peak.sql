-- Question: What was alive on each rank at its own peak? Exact.
-- Parameters:
--   of_session: session id
-- Columns:
--   all columns of the view allocation, of each rank's attempt with its highest peak
--   device_type: cpu, cuda, ...
--   peak_time_ns (ns, common clock): the rank's peak
--   line: the line of the project that made it
--   frames: its Python stack
--   age_ns (ns): from its alloc to the peak; NULL for blocks older than the recording
CREATE OR REPLACE MACRO live_at_peak(of_session) AS TABLE
SELECT a.* EXCLUDE (alive_at_peak), s.line, s.frames, a.peak_time_ns - a.allocated_ns AS age_ns
FROM allocation_at_peak(of_session) AS a
LEFT JOIN stack AS s USING (stack_id)
WHERE a.alive_at_peak
ORDER BY a.rank, a.device, a.size_bytes DESC, a.allocation_id;

COMMENT ON MACRO TABLE live_at_peak IS 'The blocks alive on each rank at its own peak, exact by sequence.';
