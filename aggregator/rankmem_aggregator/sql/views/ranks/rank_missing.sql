-- Question: Which ranks did the launcher announce that never sent anything?
-- Columns:
--   session_id, attempt, rank: whose; the attempt is judged by the largest world size given to any of its ranks
--   state: never reported; awaited while ranks of that attempt still run and no later one has begun
-- Scatter: hosts
CREATE OR REPLACE VIEW rank_missing AS
WITH attempt AS (
    SELECT
        r.session_id,
        r.attempt,
        -- A number from outside: no list of billions is made of it.
        least(max(r.world_size), 65536) AS world_size,
        bool_and(o.is_over) AS is_over
    FROM rank_info AS r
    INNER JOIN rank_over AS o USING (session_id, attempt, rank)
    GROUP BY r.session_id, r.attempt
    HAVING max(r.world_size) IS NOT NULL
),
announced AS (
    SELECT session_id, attempt, is_over, unnest(range(world_size))::INTEGER AS rank
    FROM attempt
)
SELECT
    a.session_id,
    a.attempt,
    a.rank,
    CASE WHEN a.is_over THEN 'never reported' ELSE 'awaited' END AS state
FROM announced AS a
ANTI JOIN rank_info AS r USING (session_id, attempt, rank);

COMMENT ON VIEW rank_missing IS 'A rank that the launcher announced and that never sent anything.';
