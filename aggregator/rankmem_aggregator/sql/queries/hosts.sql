-- Question: Which hosts ran ranks of a session?
-- Parameters:
--   session (text): session id
-- Columns:
--   all columns of the view host_overview
SELECT * FROM host_overview
WHERE session_id = $session
ORDER BY host_name, host_uid;
