-- Question: Which blocks were alive right after an event of a rank? Exact.
-- Parameters:
--   of_session: session id
--   of_attempt: which start of the workers
--   of_rank: global rank
--   of_device: device type and index
--   at_seq: seq of the event
-- Columns:
--   all columns of the view allocation; category: what the bytes meant then
--   line: the line of the project that made it
--   forward_line: of a block of backward the line of the forward call it belongs to
--   frames: its Python stack
-- Scatter: none
CREATE OR REPLACE MACRO live_at_seq(of_session, of_attempt, of_rank, of_device, at_seq) AS TABLE
SELECT
    a.* EXCLUDE (first_category, device_type, point_seq),
    CASE WHEN NOT a.preexisting THEN utc_of(a.allocated_ns) END AS allocated_utc,
    utc_of(a.freed_ns) AS freed_utc,
    s.line,
    f.line AS forward_line,
    s.frames
FROM live_at_points(
    of_session,
    [{
        attempt: of_attempt::INTEGER, rank: of_rank::INTEGER, device: of_device::VARCHAR, seq: at_seq::BIGINT
    }]
) AS a
LEFT JOIN stack AS s USING (stack_id)
LEFT JOIN stack AS f ON f.stack_id = a.forward_stack_id
ORDER BY a.size_bytes DESC, a.allocation_id;

COMMENT ON MACRO TABLE live_at_seq IS 'The blocks alive right after an event of a rank, exact by sequence.';
