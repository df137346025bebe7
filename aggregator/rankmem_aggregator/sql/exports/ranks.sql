-- Question: Which ranks are there to export, and where did each run?
-- Parameters:
--   session (text): session id
-- Columns:
--   attempt, rank: which start of the workers, and the global rank
--   host_name: its host, or its id where that has no name
--   offset_ns (ns): add to its host's times to get the common clock
SELECT s.attempt, s.rank, coalesce(h.host_name, s.host_uid, 'unknown') AS host_name, s.offset_ns
FROM rank_span AS s
LEFT JOIN host_info AS h USING (host_uid)
WHERE s.session_id = $session
ORDER BY s.rank, s.attempt;
