-- Question: Which event of each device of a rank was the last at or before a position of its log?
-- Parameters:
--   session (text): session id
--   rank (count): global rank
--   first: the position
-- Columns:
--   attempt, rank, device: which device
--   seq: the event
SELECT attempt, rank, device, max(seq) AS seq
FROM memory_event
WHERE session_id = $session AND rank = $rank AND seq <= $first
GROUP BY attempt, rank, device
ORDER BY attempt, device;
