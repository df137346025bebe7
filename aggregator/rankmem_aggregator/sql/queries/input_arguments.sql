-- Question: Which tensors is the model given in training steps?
-- Parameters:
--   session (text): session id
-- Columns:
--   attempt: which start of the workers
--   argument: place or name, of calls that recorded autograd in steps with any; a row for each type and number of dimensions
--   dtype: its type; NULL where it is not known
--   num_dimensions (count): of its shape; NULL where it is not known
-- Scatter: none
SELECT DISTINCT attempt, argument, dtype, len(regexp_extract_all(shape, '\d+')) AS num_dimensions
FROM (
    SELECT attempt, argument, dtype, shape
    FROM step_input
    WHERE session_id = $session
    QUALIFY with_grad = max(with_grad) OVER (PARTITION BY attempt, rank, step)
)
WHERE argument IS NOT NULL
ORDER BY attempt, argument, dtype, num_dimensions;
