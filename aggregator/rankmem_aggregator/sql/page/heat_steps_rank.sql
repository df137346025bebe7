-- Question: Which rank is the lowest that has training steps?
-- Parameters:
--   session (text): session id
-- Columns:
--   rank: it; NULL where none has
SELECT min(rank) AS rank
FROM step
WHERE session_id = $session
ORDER BY rank;
