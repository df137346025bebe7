-- Question: How high did a device of a rank stand in each of its training steps?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   seq_first, seq_last: steps that end between these positions of the log
-- Columns:
--   step: number
--   peak_bytes (bytes): the highest requested bytes in it
SELECT step, max(peak_bytes) AS peak_bytes
FROM step_bucket
WHERE session_id = $session
    AND attempt = $attempt
    AND rank = $rank
    AND device = $device
    AND seq_last BETWEEN $seq_first AND $seq_last
GROUP BY step
ORDER BY step;
