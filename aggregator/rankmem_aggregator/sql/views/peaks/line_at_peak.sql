-- Question: Which lines of the project held each rank's memory at its own peak? Exact.
-- Parameters:
--   of_session: session id
-- Columns:
--   attempt, rank, device, device_type: whose, on the attempt with the rank's highest peak
--   line: as in the view stack; NULL without a frame of Python, or before the recording if the block is older.
--     Of blocks of backward: that of the forward call
--   function: the function of that frame
--   live_bytes_at_peak (bytes): of its blocks alive at the peak
--   live_allocations_at_peak: how many
--   largest_bytes (bytes): the largest of them
-- Scatter: hosts
CREATE OR REPLACE MACRO line_at_peak(of_session) AS TABLE
SELECT
    b.attempt,
    b.rank,
    b.device,
    b.device_type,
    coalesce(s.line, CASE WHEN b.preexisting THEN 'before the recording' END) AS line,
    s.function,
    sum(b.size_bytes)::BIGINT AS live_bytes_at_peak,
    count(*) AS live_allocations_at_peak,
    max(b.size_bytes) AS largest_bytes
FROM live_at_points(of_session, (
    SELECT list({attempt: attempt, rank: rank, device: device, seq: peak_seq})
    FROM peak_by_rank
    WHERE session_id = of_session AND is_rank_peak
)) AS b
LEFT JOIN stack AS s ON s.stack_id = coalesce(b.forward_stack_id, b.stack_id)
GROUP BY ALL
ORDER BY b.rank, b.device, live_bytes_at_peak DESC, line, s.function;

COMMENT ON MACRO TABLE line_at_peak IS 'Bytes alive at each rank''s own peak, by line of the project.';
