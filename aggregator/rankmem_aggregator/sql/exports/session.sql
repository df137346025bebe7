-- Question: Which session is it?
-- Parameters:
--   session (text): session id
--   ranks (text): without meaning here
-- Columns:
--   all columns of the table session
SELECT *
FROM session
WHERE session_id = $session AND $ranks IS NOT DISTINCT FROM $ranks
ORDER BY session_id;
