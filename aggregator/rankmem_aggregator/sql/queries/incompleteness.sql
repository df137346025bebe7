-- Question: What is missing of a session's ranks, since when, and why (no row: nothing that anybody knows of)?
-- Parameters:
--   session (text): session id
-- Columns:
--   all columns of the view incompleteness
SELECT * FROM incompleteness
WHERE session_id = $session
ORDER BY attempt, rank, since_ns NULLS FIRST, why, what, detail;
