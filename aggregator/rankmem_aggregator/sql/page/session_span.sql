-- Question: What is a session called, and from when to when does it have events?
-- Parameters:
--   session (text): session id
-- Columns:
--   name, source, state, command, world_size, num_hosts, num_attempts, events, complete: as in session_overview
--   first_ns, last_ns (ns, common clock): its first and last event, or the ranks' lives where those are longer
SELECT
    o.name,
    o.source,
    o.state,
    o.command,
    o.world_size,
    o.num_hosts,
    o.num_attempts,
    o.events,
    o.complete,
    least(o.started_ns, b.first_ns) AS first_ns,
    greatest(o.ended_ns, b.last_ns, o.started_ns) AS last_ns
FROM session_overview AS o
LEFT JOIN (
    SELECT
        min(b.first_ns + coalesce(s.offset_ns, 0)) AS first_ns,
        max(b.last_ns + coalesce(s.offset_ns, 0)) AS last_ns
    FROM memory_cell($session, 1024) AS b
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
) AS b ON true
WHERE o.session_id = $session;
