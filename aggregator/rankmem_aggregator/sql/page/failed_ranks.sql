-- Question: Between which ranks are those of which an allocation failed?
-- Parameters:
--   session (text): session id
-- Columns:
--   first_rank, last_rank: the lowest and the highest of them; 0 and -1 where none failed
SELECT coalesce(min(rank), 0) AS first_rank, coalesce(max(rank), -1) AS last_rank
FROM oom
WHERE session_id = $session
ORDER BY first_rank;
