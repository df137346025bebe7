-- Question: Where on the time axis are events missing, from ranks of a session?
-- Parameters:
--   session (text): session id
--   at_most (count): rows
-- Columns:
--   rank, attempt: whose
--   from_ns, until_ns (ns, common clock): between the last event before the gap and the first after it, as far as the
--     buckets tell; until_ns NULL: to its end
--   why: as in gap
--   records: how many records are missing, at most as many events
WITH hole AS MATERIALIZED (
    SELECT
        g.attempt,
        g.rank,
        g.sequence_first,
        g.sequence_last,
        g.noticed_ns,
        g.why,
        g.records,
        coalesce(g.to_end, false) AS to_end
    FROM gap AS g
    WHERE g.session_id = $session AND g.why NOT IN ('hooks_off', 'device_off')
    ORDER BY g.rank, g.attempt, g.sequence_first
    LIMIT $at_most
)
SELECT
    g.rank,
    g.attempt,
    coalesce(
        CASE WHEN g.to_end THEN any_value(g.noticed_ns) END,
        max(b.last_ns) FILTER (b.seq_last < g.sequence_first),
        min(b.first_ns) FILTER (b.seq_last >= g.sequence_first),
        any_value(g.noticed_ns)
    ) + coalesce(any_value(s.offset_ns), 0) AS from_ns,
    CASE WHEN NOT g.to_end THEN coalesce(
        min(b.first_ns) FILTER (b.seq_first > g.sequence_last),
        max(b.last_ns) FILTER (b.seq_last > g.sequence_last)
    ) + coalesce(any_value(s.offset_ns), 0) END AS until_ns,
    g.why,
    g.records
FROM hole AS g
LEFT JOIN memory_bucket AS b ON b.session_id = $session AND b.attempt = g.attempt AND b.rank = g.rank
LEFT JOIN rank_span AS s ON s.session_id = $session AND s.attempt = g.attempt AND s.rank = g.rank
GROUP BY g.attempt, g.rank, g.sequence_first, g.sequence_last, g.why, g.records, g.to_end
ORDER BY g.rank, g.attempt, g.sequence_first;
