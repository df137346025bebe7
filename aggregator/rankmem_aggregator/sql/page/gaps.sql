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
    SELECT DISTINCT
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
    coalesce(CASE WHEN g.to_end THEN g.noticed_ns END, b.last_ns) + coalesce(s.offset_ns, 0) AS from_ns,
    CASE WHEN g.to_end THEN s.ended_ns ELSE f.first_ns + coalesce(s.offset_ns, 0) END AS until_ns,
    h.host_name
FROM hole AS g
ASOF LEFT JOIN (SELECT attempt, rank, seq_last, last_ns FROM memory_bucket WHERE session_id = $session) AS b
    ON g.attempt = b.attempt AND g.rank = b.rank AND g.sequence_first > b.seq_last
ASOF LEFT JOIN (SELECT attempt, rank, seq_first, first_ns FROM memory_bucket WHERE session_id = $session) AS f
    ON g.attempt = f.attempt AND g.rank = f.rank AND g.sequence_last < f.seq_first
LEFT JOIN rank_span AS s ON s.session_id = $session AND s.attempt = g.attempt AND s.rank = g.rank
LEFT JOIN host_info AS h ON h.host_uid = s.host_uid
ORDER BY g.rank, g.attempt, g.sequence_first, g.why;
