-- Question: From when to when did each training step of a rank run?
-- Parameters:
--   session (text), attempt, rank: the rank
--   offset_ns (ns): added to its host's times
--   from_ns, until_ns (ns, common clock): the range
-- Columns:
--   step: number
--   started_ns, ended_ns (ns, common clock): the first begins with the rank
--   seq_last: position of its end in the log
WITH ended AS (
    SELECT step, max(ended_ns) AS ended_ns, max(seq) AS seq_last
    FROM step
    WHERE session_id = $session AND attempt = $attempt AND rank = $rank
    GROUP BY step
),
span AS (
    SELECT
        step,
        lag(ended_ns) OVER (ORDER BY ended_ns, step) AS before_ns,
        ended_ns,
        seq_last
    FROM ended
)
SELECT
    step,
    coalesce(before_ns + $offset_ns::BIGINT, $from_ns) AS started_ns,
    ended_ns + $offset_ns::BIGINT AS ended_ns,
    seq_last
FROM span
WHERE ended_ns + $offset_ns::BIGINT >= $from_ns AND coalesce(before_ns + $offset_ns::BIGINT, $from_ns) <= $until_ns
ORDER BY ended_ns, step;
