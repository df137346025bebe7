-- Question: Which allocations failed in a session? The earliest first.
-- Parameters:
--   session (text): session id
-- Columns:
--   all columns of the view oom_overview
SELECT * FROM oom_overview
WHERE session_id = $session
ORDER BY time_ns, attempt, rank, seq;
