-- Question: Which bucket of a device of a rank is the nearest one, after or before a position of its log, that stands higher than an amount?
-- Parameters:
--   session (text): session id
--   attempt, rank, device: which device
--   seq: the position; the bucket that it lies in counts
--   above (bytes): the amount
--   forward (boolean): after, or before
-- Columns:
--   seq_first, seq_last: its events
SELECT seq_first, seq_last
FROM memory_bucket
WHERE session_id = $session
    AND attempt = $attempt
    AND rank = $rank
    AND device = $device
    AND requested_peak_bytes > $above
    AND CASE WHEN $forward::BOOLEAN THEN seq_last > $seq ELSE seq_first < $seq END
ORDER BY CASE WHEN $forward::BOOLEAN THEN seq_first ELSE -seq_first END
LIMIT 1;
