-- Question: Which tensors is the model given in training steps?
-- Parameters:
--   session (text): session id
-- Columns:
--   attempt: which start of the workers
--   argument: place or name, of calls that count, as model_input says; a row for each type and number of dimensions
--   dtype: its type; NULL where it is not known
--   num_dimensions (count): of its shape; NULL where it is not known
-- Scatter: none
SELECT DISTINCT attempt, argument, dtype, len(regexp_extract_all(shape, '\d+')) AS num_dimensions
FROM model_input($session)
WHERE is_counted AND argument IS NOT NULL
ORDER BY attempt, argument, dtype, num_dimensions;
