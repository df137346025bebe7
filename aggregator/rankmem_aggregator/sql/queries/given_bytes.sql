-- Question: How much was the model given in each step?
-- Parameters:
--   session (text): session id
--   rank (count): global rank; NULL for all
-- Columns:
--   attempt, rank: whose
--   place (count): of the step among the rank's, from 0, as in held_after_steps; none in which no call is known
--   largest_bytes (bytes): of all tensors of the largest call of the model in it that counts, as model_input says
--   last_bytes (bytes): of the last such call
-- Scatter: hosts
WITH ended AS (
    SELECT attempt, rank, step, row_number() OVER (PARTITION BY attempt, rank ORDER BY seq) - 1 AS place
    FROM training_step($session, of_rank := $rank)
    WHERE seq IS NOT NULL
),
call AS (
    SELECT attempt, rank, step, seq, call_bytes
    FROM model_input($session, of_rank := $rank)
    WHERE is_counted
)
SELECT
    e.attempt,
    e.rank,
    e.place,
    max(c.call_bytes)::BIGINT AS largest_bytes,
    arg_max(c.call_bytes, c.seq)::BIGINT AS last_bytes
FROM ended AS e
INNER JOIN call AS c USING (attempt, rank, step)
CROSS JOIN unstreamed
GROUP BY e.attempt, e.rank, e.place
ORDER BY attempt, rank, place;
