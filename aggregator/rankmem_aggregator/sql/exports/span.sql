-- Question: From when to when does a session have events?
-- Parameters:
--   session (text): session id
-- Columns:
--   first_ns, last_ns (ns, common clock): of the first and the last
SELECT
    min(b.first_ns + coalesce(s.offset_ns, 0)) AS first_ns,
    max(b.last_ns + coalesce(s.offset_ns, 0)) AS last_ns
FROM memory_bucket AS b
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
WHERE b.session_id = $session
ORDER BY first_ns;
