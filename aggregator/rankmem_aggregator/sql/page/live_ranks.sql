-- Question: Which ranks have come, how did they end, and how far is each stored?
-- Parameters:
--   session (text): session id
-- Columns:
--   attempt, rank: who
--   state: running, or how it ended
--   until_ns, sampled_ns (ns, common clock): its newest event and the newest sample of its process that are stored; NULL
--     where it has none of the last ten minutes
WITH newest AS (
    SELECT
        b.attempt,
        b.rank,
        max(b.event_ns + coalesce(s.offset_ns, 0)) AS until_ns,
        max(b.sample_ns + coalesce(s.offset_ns, 0)) AS sampled_ns
    FROM (
        SELECT attempt, rank, last_ns AS event_ns, NULL::BIGINT AS sample_ns, last_ns AS at_ns
        FROM memory_bucket
        WHERE session_id = $session
        UNION ALL
        SELECT attempt, rank, NULL, time_ns, time_ns
        FROM process_sample
        WHERE session_id = $session
    ) AS b
    LEFT JOIN rank_span AS s ON s.session_id = $session AND s.attempt = b.attempt AND s.rank = b.rank
    WHERE
        -- So that the blocks of the tables that are older are not read.
        b.at_ns >= coalesce(
            (SELECT max(updated_ns) - 600000000000 FROM ingest_progress WHERE session_id = $session), b.at_ns
        )
    GROUP BY b.attempt, b.rank
)
SELECT
    i.attempt,
    i.rank,
    coalesce(i.end_reason, CASE WHEN i.ended_at_ns IS NULL THEN 'running' ELSE 'ended' END) AS state,
    n.until_ns,
    n.sampled_ns
FROM rank_info AS i
LEFT JOIN newest AS n USING (attempt, rank)
CROSS JOIN unstreamed
WHERE i.session_id = $session
ORDER BY i.attempt, i.rank;
