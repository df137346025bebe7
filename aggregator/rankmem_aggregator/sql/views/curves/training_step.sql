-- Question: Which steps did each rank take, and where in its log do they end?
-- Parameters:
--   of_session: session id
--   of_rank: global rank; NULL, the default, for all
-- Columns:
--   attempt, rank: whose
--   step: number of the step, from 0; calls of the model before a training's first step (a validation) are none
--   seq: its last position in the rank's log; NULL where it has no place among its events
-- Scatter: hosts
CREATE OR REPLACE MACRO training_step(of_session, of_rank := NULL) AS TABLE
SELECT attempt, rank, step, max(seq) AS seq
FROM (
    SELECT attempt, rank, step, seq
    FROM step
    WHERE session_id = of_session AND (of_rank IS NULL OR rank = of_rank)
    QUALIFY optimizer IS DISTINCT FROM 'model call'
        OR bool_and(optimizer IS NOT DISTINCT FROM 'model call') OVER (PARTITION BY attempt, rank)
)
GROUP BY attempt, rank, step
ORDER BY attempt, rank, seq, step;

COMMENT ON MACRO TABLE training_step IS 'A rank''s steps, without the calls of the model before the first of a training.';
