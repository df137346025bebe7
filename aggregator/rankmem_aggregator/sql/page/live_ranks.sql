-- Question: Which ranks have come, how did they end, and how far is each stored?
-- Parameters:
--   session (text): session id
-- Columns:
--   attempt, rank: who
--   state: running, or how it ended
--   until_ns (ns, common clock): its newest event that is stored; NULL where it has none of the last ten minutes
WITH newest AS (
    SELECT b.attempt, b.rank, max(b.last_ns + coalesce(s.offset_ns, 0)) AS until_ns
    FROM memory_bucket AS b
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
    WHERE b.session_id = $session
        -- So that the blocks of the table that are older are not read.
        AND b.last_ns >= coalesce(
            (SELECT max(updated_ns) - 600000000000 FROM ingest_progress WHERE session_id = $session), b.last_ns
        )
    GROUP BY b.attempt, b.rank
)
SELECT
    i.attempt,
    i.rank,
    coalesce(i.end_reason, CASE WHEN i.ended_at_ns IS NULL THEN 'running' ELSE 'ended' END) AS state,
    n.until_ns
FROM rank_info AS i
LEFT JOIN newest AS n USING (attempt, rank)
CROSS JOIN unstreamed
WHERE i.session_id = $session
ORDER BY i.attempt, i.rank;
