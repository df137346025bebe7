-- Question: What is the model given in each step, and which of its calls tell how large the step is?
-- Parameters:
--   of_session: session id
--   of_rank: global rank; NULL, the default, for all
-- Columns:
--   attempt, rank: whose
--   step, seq, with_grad, argument, dtype, shape, call_bytes, num_left_out: as in step_input, a row for each of its rows
--   is_counted: true of a step's calls that recorded autograd, or of all where none did. False of all where an optimizer
--     ended the step and none did: another model was trained
-- Scatter: hosts
CREATE OR REPLACE MACRO model_input(of_session, of_rank := NULL) AS TABLE
SELECT
    i.attempt,
    i.rank,
    i.step,
    i.seq,
    i.with_grad,
    i.argument,
    i.dtype,
    i.shape,
    i.call_bytes,
    i.num_left_out,
    i.with_grad OR NOT (o.step IS NOT NULL OR bool_or(i.with_grad) OVER (PARTITION BY i.attempt, i.rank, i.step)) AS is_counted
FROM step_input AS i
LEFT JOIN (
    SELECT DISTINCT attempt, rank, step
    FROM step
    WHERE session_id = of_session AND (of_rank IS NULL OR rank = of_rank) AND optimizer NOT IN ('user', 'model call')
) AS o USING (attempt, rank, step)
WHERE i.session_id = of_session AND (of_rank IS NULL OR i.rank = of_rank)
ORDER BY i.attempt, i.rank, i.seq, i.argument;

COMMENT ON MACRO TABLE model_input IS 'What the model is given, and which of its calls tell how large a step is.';
