-- Question: Which host stood highest, and which of its ranks? The highest first.
-- Parameters:
--   session (text): session id
-- Columns:
--   all columns of the view peak_by_host
SELECT * FROM peak_by_host
WHERE session_id = $session
ORDER BY peak_requested_bytes DESC, attempt, host_name, device_type;
