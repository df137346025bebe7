-- Question: What is a session called, and from when to when does it have events?
-- Parameters:
--   session (text): session id
-- Columns:
--   name, source, state, command, world_size, num_hosts, num_attempts, events, complete: as in session_overview
--   first_ns, last_ns (ns, common clock): its first and last event, or the ranks' lives where those are longer
-- As session_overview has it, whose peaks would be found besides.
WITH life AS MATERIALIZED (
    SELECT *
    FROM rank_span
    WHERE session_id = $session
)
SELECT
    s.name,
    s.source,
    CASE WHEN coalesce(r.ended_ns, s.ended_at_ns) IS NULL THEN 'running' ELSE 'ended' END AS state,
    s.command,
    s.world_size,
    r.num_hosts,
    r.num_attempts,
    coalesce(r.events, 0) AS events,
    coalesce(r.complete, false) AND a.num_absent = 0 AS complete,
    least(coalesce(r.started_ns, s.started_at_ns), b.first_ns) AS first_ns,
    greatest(
        coalesce(r.ended_ns, s.ended_at_ns), b.last_ns, coalesce(r.started_ns, s.started_at_ns)
    ) AS last_ns
FROM session AS s
CROSS JOIN (
    SELECT
        count(DISTINCT i.host_uid) AS num_hosts,
        count(DISTINCT i.attempt) AS num_attempts,
        coalesce(min(l.started_ns) FILTER (coalesce(l.has_clock, true)), min(l.started_ns)) AS started_ns,
        CASE WHEN count(*) = count(l.ended_ns) THEN max(l.ended_ns) END AS ended_ns,
        sum(coalesce(i.events, 0))::BIGINT AS events,
        bool_and(
            coalesce(i.complete, false) AND g.rank IS NULL AND NOT (i.end_reason IS NULL AND l.ended_ns IS NOT NULL)
        ) AS complete
    FROM rank_info AS i
    LEFT JOIN life AS l USING (attempt, rank)
    LEFT JOIN (
        SELECT DISTINCT attempt, rank
        FROM gap
        WHERE session_id = $session AND why <> 'hooks_off'
    ) AS g USING (attempt, rank)
    CROSS JOIN unstreamed
    WHERE i.session_id = $session
) AS r
CROSS JOIN (SELECT count(*) AS num_absent FROM rank_missing WHERE session_id = $session) AS a
CROSS JOIN (
    SELECT
        min(c.first_ns + coalesce(l.offset_ns, 0)) AS first_ns,
        max(c.last_ns + coalesce(l.offset_ns, 0)) AS last_ns
    FROM memory_cell($session, 1024) AS c
    LEFT JOIN life AS l USING (attempt, rank)
) AS b
CROSS JOIN unstreamed
WHERE s.session_id = $session
ORDER BY s.name;
