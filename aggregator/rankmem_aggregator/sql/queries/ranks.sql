-- Question: Which ranks ran in a session, which never reported, and is what we have of each complete?
-- Parameters:
--   session (text): session id
-- Columns:
--   all columns of the view rank_overview; of a rank of rank_missing who it is, its state and that nothing is complete
-- Scatter: hosts
SELECT * FROM rank_overview
WHERE session_id = $session
UNION ALL BY NAME
SELECT *, false AS complete FROM rank_missing
WHERE session_id = $session
ORDER BY attempt, rank;
