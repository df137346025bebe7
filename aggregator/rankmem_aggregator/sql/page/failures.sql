-- Question: Which allocations of some ranks failed? The earliest first.
-- Parameters:
--   session (text): session id
--   first_rank, last_rank: between these, both included; without them the view reads what all ranks stored
-- Columns:
--   all columns of the view oom_overview
SELECT *
FROM oom_overview
WHERE session_id = $session AND rank BETWEEN $first_rank AND $last_rank
ORDER BY time_ns, attempt, rank, seq;
