-- Question: Between which instants does each hole of a rank's log lie?
-- Parameters:
--   session (text): session id
-- Columns:
--   rank, attempt: whose
--   why: as in gap
--   records: missing records of the log, so at most as many events; NULL where all from then on is missing
--   sequence_first, sequence_last: missing positions
--   from_ns (ns, common clock): the last bucket of events before it ends then; NULL: it lies at the beginning
--   until_ns (ns, common clock): the first bucket after it begins then; NULL: nothing follows
--   host_name: the rank's host
SELECT
    g.rank,
    g.attempt,
    g.why,
    CASE WHEN g.to_end IS DISTINCT FROM true THEN g.records END AS records,
    g.sequence_first,
    g.sequence_last,
    coalesce(
        CASE WHEN g.to_end THEN any_value(g.noticed_ns) END,
        max(b.last_ns) FILTER (b.seq_last < g.sequence_first)
    ) + coalesce(any_value(s.offset_ns), 0) AS from_ns,
    CASE
        WHEN g.to_end IS DISTINCT FROM true
            THEN min(b.first_ns) FILTER (b.seq_first > g.sequence_last) + coalesce(any_value(s.offset_ns), 0)
        ELSE any_value(s.ended_ns)
    END AS until_ns,
    any_value(h.host_name) AS host_name
FROM gap AS g
LEFT JOIN memory_bucket AS b USING (session_id, attempt, rank)
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
LEFT JOIN host_info AS h ON h.host_uid = s.host_uid
WHERE g.session_id = $session AND g.why <> 'hooks_off'
GROUP BY g.rank, g.attempt, g.why, g.records, g.to_end, g.sequence_first, g.sequence_last, g.noticed_ns
ORDER BY g.rank, g.attempt, g.sequence_first, g.why;
