-- Question: Which parameters does the model have, how large are they and their gradients, and where were they made?
-- Columns:
--   session_id, attempt, rank: whose
--   name: in the module tree
--   size_bytes (bytes): of the parameter, or of this rank's shard
--   grad_size_bytes (bytes): of its gradient; 0 without one of its own, as under ZeRO
--   dtype, shape: of its elements
--   line: the line of the project that made it
--   stack_id: its Python stack
-- Scatter: hosts
CREATE OR REPLACE VIEW weight_line AS
SELECT
    w.session_id, w.attempt, w.rank, w.name, w.size_bytes, w.grad_size_bytes, w.dtype, w.shape, s.line, w.stack_id
FROM weight AS w
LEFT JOIN stack AS s USING (stack_id);

COMMENT ON VIEW weight_line IS 'A parameter of the model on a rank, with the line that made it.';
