-- Question: Which ranks have come, and how did they end?
-- Parameters:
--   session (text): session id
-- Columns:
--   attempt, rank: who
--   state: running, or how it ended
SELECT
    attempt,
    rank,
    coalesce(end_reason, CASE WHEN ended_at_ns IS NULL THEN 'running' ELSE 'ended' END) AS state
FROM rank_info
WHERE session_id = $session
ORDER BY attempt, rank;
