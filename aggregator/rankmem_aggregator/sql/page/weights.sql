-- Question: Which parameters does the model have on a rank, the largest first?
-- Parameters:
--   session (text): session id
--   rank (count): global rank
--   module (text): path of a module; only what is in it; NULL for all
--   at_most (count): rows
-- Columns:
--   attempt, name, size_bytes, grad_size_bytes, dtype, shape, line: as in weight_line
--   total, total_bytes, total_grad_bytes: of all that fit, in every row
SELECT
    attempt,
    name,
    size_bytes,
    grad_size_bytes,
    dtype,
    shape,
    line,
    count(*) OVER () AS total,
    (sum(size_bytes) OVER ())::BIGINT AS total_bytes,
    (sum(grad_size_bytes) OVER ())::BIGINT AS total_grad_bytes
FROM weight_line
WHERE session_id = $session
    AND rank = $rank
    AND ($module::VARCHAR IS NULL OR starts_with(name, $module || '.'))
ORDER BY size_bytes DESC, attempt, name
LIMIT $at_most;
