-- Question: From when to when does a session have events?
-- Parameters:
--   session (text): session id
-- Columns:
--   first_ns, last_ns (ns, common clock): of the first and the last; of ranks with a clock, where there are any
WITH bucket AS (
    SELECT
        b.first_ns + coalesce(s.offset_ns, 0) AS first_ns,
        b.last_ns + coalesce(s.offset_ns, 0) AS last_ns
    FROM memory_bucket AS b
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
    WHERE b.session_id = $session
)
SELECT
    coalesce(min(first_ns) FILTER (WHERE utc_of(first_ns) IS NOT NULL), min(first_ns)) AS first_ns,
    max(last_ns) AS last_ns
FROM bucket
ORDER BY first_ns;
