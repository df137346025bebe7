-- Question: Between which instants does each hole of a rank's log lie?
-- Parameters:
--   session (text): session id
--   at_most (count): holes, from the lowest ranks on
-- Columns:
--   rank, attempt: whose
--   why: as in gap
--   records: missing records of the log, so at most as many events; NULL where all from then on is missing
--   sequence_first, sequence_last: missing positions
--   from_ns (ns, common clock): the last bucket of events before it ends then; NULL: it lies at the beginning
--   until_ns (ns, common clock): the first bucket after it begins then; NULL: nothing follows
--   host_name: the rank's host
WITH hole AS MATERIALIZED (
    SELECT
        rank,
        attempt,
        why,
        records,
        sequence_first,
        sequence_last,
        noticed_ns,
        coalesce(to_end, false) AS to_end
    FROM gap
    WHERE session_id = $session AND why <> 'hooks_off'
    ORDER BY rank, attempt, sequence_first, why
    LIMIT $at_most
)
SELECT
    g.rank,
    g.attempt,
    g.why,
    CASE WHEN NOT g.to_end THEN g.records END AS records,
    g.sequence_first,
    g.sequence_last,
    coalesce(
        CASE WHEN g.to_end THEN any_value(g.noticed_ns) END,
        max(b.last_ns) FILTER (b.seq_last < g.sequence_first)
    ) + coalesce(any_value(s.offset_ns), 0) AS from_ns,
    CASE
        WHEN NOT g.to_end
            THEN min(b.first_ns) FILTER (b.seq_first > g.sequence_last) + coalesce(any_value(s.offset_ns), 0)
        ELSE any_value(s.ended_ns)
    END AS until_ns,
    any_value(h.host_name) AS host_name
FROM hole AS g
LEFT JOIN memory_bucket AS b ON b.session_id = $session AND b.attempt = g.attempt AND b.rank = g.rank
LEFT JOIN rank_span AS s ON s.session_id = $session AND s.attempt = g.attempt AND s.rank = g.rank
LEFT JOIN host_info AS h ON h.host_uid = s.host_uid
GROUP BY g.rank, g.attempt, g.why, g.records, g.to_end, g.sequence_first, g.sequence_last, g.noticed_ns
ORDER BY g.rank, g.attempt, g.sequence_first, g.why;
