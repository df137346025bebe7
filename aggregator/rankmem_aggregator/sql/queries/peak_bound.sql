-- Question: Is each rank's peak exact, and where events are missing, how high was it at least?
-- Parameters:
--   session (text): session id
-- Columns:
--   all columns of the view peak_bound
SELECT * FROM peak_bound
WHERE session_id = $session
ORDER BY attempt, rank, device;
