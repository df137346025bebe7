-- Question: How far is a session stored now?
-- Parameters:
--   session (text): session id
-- Columns:
--   now_ns (ns, the aggregator's clock, which is the common one): the moment of this answer
--   stored_ns (ns, the aggregator's clock): the newest batch; NULL where nothing is stored
--   events: allocator events, as the ranks have reported
--   num_ranks, num_running: ranks that came, and those that have not ended
--   num_ooms: failed allocations
WITH stored AS (
    SELECT max(updated_ns) AS stored_ns
    FROM ingest_progress
    WHERE session_id = $session
),
ranks AS (
    SELECT sum(events)::BIGINT AS events, count(*) AS num_ranks
    FROM rank_info
    WHERE session_id = $session
),
running AS (
    SELECT count(*) AS num_running
    FROM rank_span
    WHERE session_id = $session AND ended_ns IS NULL
),
failed AS (
    SELECT count(*) AS num_ooms
    FROM oom
    WHERE session_id = $session
)
SELECT
    epoch_ns(now()) AS now_ns,
    d.stored_ns,
    coalesce(r.events, 0) AS events,
    r.num_ranks,
    g.num_running,
    o.num_ooms
FROM stored AS d
CROSS JOIN ranks AS r
CROSS JOIN running AS g
CROSS JOIN failed AS o
ORDER BY now_ns;
