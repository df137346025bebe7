-- Question: Which sessions are known to lack events, and of how many ranks? The newest first.
-- Columns:
--   session_id: the job
--   num_ranks: its ranks, over all attempts, of which figures of bytes may be wrong
-- Scatter: none
SELECT i.session_id, count(DISTINCT (i.attempt, i.rank)) AS num_ranks
FROM incompleteness AS i
INNER JOIN session AS s USING (session_id)
WHERE i.is_bytes
GROUP BY i.session_id
ORDER BY any_value(s.started_at_ns) DESC NULLS LAST, i.session_id DESC;
