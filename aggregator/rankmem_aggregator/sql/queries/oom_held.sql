-- Question: What held the memory of a rank when an allocation failed?
-- Parameters:
--   session (text): session id
--   by (text): category, operator, line, module, phase, step, annotation, stream or component
--   attempt (count): which start of the workers; this and the next three name a row of oom_overview
--   rank (count): global rank
--   device (text): device type and index
--   seq (count): the event
-- Columns:
--   all columns of the macro held_at_points
-- Scatter: none
SELECT * FROM held_at_points(
    $session,
    $by,
    [{attempt: $attempt::INTEGER, rank: $rank::INTEGER, device: $device::VARCHAR, seq: $seq::BIGINT}]
)
ORDER BY live_bytes DESC, group_name;
