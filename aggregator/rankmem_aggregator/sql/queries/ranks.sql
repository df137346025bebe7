-- Question: Which ranks ran in a session, and is what we have of each complete?
-- Parameters:
--   session (text): session id
-- Columns:
--   all columns of the view rank_overview
SELECT * FROM rank_overview
WHERE session_id = $session
ORDER BY attempt, rank;
