-- Question: Which allocations failed in a session? The earliest first.
-- Parameters:
--   session (text): session id
--   rank (count): global rank; NULL for all
-- Columns:
--   all columns of the view oom_overview
SELECT * FROM oom_overview
WHERE session_id = $session AND ($rank::INTEGER IS NULL OR rank = $rank)
ORDER BY time_ns, attempt, rank, seq;
