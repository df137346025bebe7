-- Question: How far is the clock of each rank of a session from the common clock?
-- Parameters:
--   session (text): session id
-- Columns:
--   attempt, rank: whose
--   offset_ns (ns): add to its host's times
SELECT s.attempt, s.rank, coalesce(s.offset_ns, 0) AS offset_ns
FROM rank_span AS s
WHERE s.session_id = $session
ORDER BY s.attempt, s.rank;
