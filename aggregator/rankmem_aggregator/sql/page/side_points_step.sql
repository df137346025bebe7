-- Question: After which event of a training step did each device stand highest?
-- Parameters:
--   session (text): session id
--   first: the step; of each rank in the last attempt that made it
-- Columns:
--   attempt, rank, device: which device
--   seq: the event
SELECT attempt, rank, device, arg_max(peak_seq, (peak_bytes, -peak_seq)) AS seq
FROM step_bucket
WHERE session_id = $session AND step = $first
GROUP BY attempt, rank, device
QUALIFY attempt = max(attempt) OVER (PARTITION BY rank, device)
ORDER BY rank, attempt, device;
