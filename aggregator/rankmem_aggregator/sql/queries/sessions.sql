-- Question: Which sessions are stored? The newest first.
-- Columns:
--   all columns of the view session_overview
SELECT * FROM session_overview
ORDER BY started_ns DESC, session_id DESC;
