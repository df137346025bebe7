-- Question: Which failed allocation of a device of a rank comes after a position of its log? The first of all after the last.
-- Parameters:
--   session (text): session id
--   attempt, rank, device: which device
--   seq: the position
-- Columns:
--   seq: of the failed allocation
SELECT seq
FROM oom
WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device
ORDER BY seq <= $seq, seq
LIMIT 1;
