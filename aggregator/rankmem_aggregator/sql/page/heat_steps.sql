-- Question: When did the training steps of a rank end, within a range of time?
-- Parameters:
--   session (text): session id
--   rank (count): global rank
--   lives (JSON text): of this rank attempt, rank, offset_ns, started_ns, ended_ns and host_name, as in heat_ranks
--   from_ns, until_ns (ns, common clock): the range
--   at_most (count): steps; of more, every second, fifth, tenth, ... is shown
-- Columns:
--   rank: whose
--   step: number, from 0
--   ended_ns (ns, common clock): when it ended
WITH life AS (
    SELECT unnest($lives::VARCHAR::JSON::STRUCT(
        attempt INTEGER, rank INTEGER, offset_ns BIGINT, started_ns BIGINT, ended_ns BIGINT, host_name VARCHAR
    )[], recursive := true)
),
ended AS (
    SELECT t.rank, t.step, max(t.ended_ns) + coalesce(any_value(s.offset_ns), 0) AS ended_ns
    FROM step AS t
    LEFT JOIN life AS s ON s.attempt = t.attempt
    WHERE t.session_id = $session AND t.rank = $rank AND t.ended_ns IS NOT NULL
    GROUP BY t.rank, t.attempt, t.step
    HAVING max(t.ended_ns) + coalesce(any_value(s.offset_ns), 0) BETWEEN $from_ns AND $until_ns
),
numbered AS (
    SELECT *, count(*) OVER () // $at_most AS surplus FROM ended
)
SELECT rank, step, ended_ns
FROM numbered
WHERE step % CASE
    WHEN surplus = 0 THEN 1
    WHEN surplus < 5 THEN 5
    WHEN surplus < 10 THEN 10
    WHEN surplus < 100 THEN 100
    WHEN surplus < 1000 THEN 1000
    ELSE 100000
END = 0
ORDER BY ended_ns, step;
