-- Question: Which blocks were alive right after an event of a rank? Exact.
-- Parameters:
--   of_session: session id
--   of_attempt: which start of the workers
--   of_rank: global rank
--   of_device: device type and index
--   at_seq: seq of the event
-- Columns:
--   all columns of the view allocation
--   line: the line of the project that made it
--   frames: its Python stack
CREATE OR REPLACE MACRO live_at_seq(of_session, of_attempt, of_rank, of_device, at_seq) AS TABLE
SELECT a.*, s.line, s.frames
FROM allocation AS a
LEFT JOIN stack AS s USING (stack_id)
WHERE a.session_id = of_session
    AND a.attempt = of_attempt
    AND a.rank = of_rank
    AND a.device = of_device
    AND a.allocation_id <= at_seq
    AND (a.freed_seq IS NULL OR a.freed_seq > at_seq)
ORDER BY a.size_bytes DESC, a.allocation_id;

COMMENT ON MACRO TABLE live_at_seq IS 'The blocks alive right after an event of a rank, exact by sequence.';
