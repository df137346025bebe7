-- Question: In which steps was the model first given a tensor of a length, or of a shape?
-- Parameters:
--   session (text): session id
--   rank (count): global rank; NULL for all
-- Columns:
--   attempt, rank: whose
--   argument: of the model, to which the tensors were given
--   dimension (count): whose lengths are meant, from 0; NULL: the whole shapes
--   places (count): of the steps among the rank's in which one came that no step before had, a list; from 0, in order
--     of their ends, as in held_after_steps
-- Scatter: hosts
WITH ended AS (
    SELECT
        attempt,
        rank,
        step,
        row_number() OVER (PARTITION BY attempt, rank ORDER BY seq) - 1 AS place
    FROM training_step($session, of_rank := $rank)
    WHERE seq IS NOT NULL
),
given AS (
    SELECT i.attempt, i.rank, i.argument, i.shape, min(e.place) AS place
    FROM step_input AS i
    INNER JOIN ended AS e USING (attempt, rank, step)
    WHERE i.session_id = $session AND i.shape IS NOT NULL
    GROUP BY i.attempt, i.rank, i.argument, i.shape
),
size AS (
    SELECT attempt, rank, argument, NULL AS dimension, shape AS size, place
    FROM given
    UNION ALL BY NAME
    SELECT
        attempt,
        rank,
        argument,
        generate_subscripts(lengths, 1) - 1 AS dimension,
        unnest(lengths) AS size,
        place
    FROM (SELECT *, regexp_extract_all(shape, '\d+') AS lengths FROM given)
),
first AS (
    SELECT attempt, rank, argument, dimension, min(place) AS place
    FROM size
    GROUP BY attempt, rank, argument, dimension, size
)
SELECT attempt, rank, argument, dimension, list(DISTINCT place ORDER BY place) AS places
FROM first
CROSS JOIN unstreamed
GROUP BY attempt, rank, argument, dimension
ORDER BY attempt, rank, argument, dimension;
