-- Question: Which lines of the project held each rank's memory at its own peak? Exact.
-- Parameters:
--   of_session: session id
-- Columns:
--   attempt, rank, device, device_type: whose, on the attempt with the rank's highest peak
--   line: file:line of the innermost frame inside the project, else of the innermost; NULL without a stack.
--     Of blocks of backward: that of the forward call
--   function: the function of that frame
--   live_bytes_at_peak (bytes): of its blocks alive at the peak
--   live_allocations_at_peak: how many
--   largest_bytes (bytes): the largest of them
CREATE OR REPLACE MACRO line_at_peak(of_session) AS TABLE
SELECT
    a.attempt,
    a.rank,
    a.device,
    a.device_type,
    s.line,
    s.function,
    sum(a.size_bytes)::BIGINT AS live_bytes_at_peak,
    count(*) AS live_allocations_at_peak,
    max(a.size_bytes) AS largest_bytes
FROM allocation_at_peak(of_session) AS a
LEFT JOIN stack AS s ON s.stack_id = coalesce(a.forward_stack_id, a.stack_id)
WHERE a.alive_at_peak
GROUP BY a.attempt, a.rank, a.device, a.device_type, s.line, s.function
ORDER BY a.rank, a.device, live_bytes_at_peak DESC, s.line;

COMMENT ON MACRO TABLE line_at_peak IS 'Bytes alive at each rank''s own peak, by line of the project.';
