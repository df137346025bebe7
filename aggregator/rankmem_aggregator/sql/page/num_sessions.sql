-- Question: How many sessions are stored?
-- Columns:
--   num_sessions: how many
SELECT count(*) AS num_sessions FROM session
ORDER BY num_sessions;
