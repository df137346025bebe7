-- Question: What is the row of a session?
-- Parameters:
--   session (text): session id
-- Columns:
--   all columns of the table session
SELECT *
FROM session
WHERE session_id = $session
ORDER BY session_id;
