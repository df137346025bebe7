-- Question: Which parameters does a rank have, and where were they made?
-- Parameters:
--   session (text), attempt, rank: the rank
-- Columns:
--   name, size_bytes, grad_size_bytes, stack_id: as in weight
SELECT name, coalesce(size_bytes, 0) AS size_bytes, coalesce(grad_size_bytes, 0) AS grad_size_bytes, stack_id
FROM weight
WHERE session_id = $session AND attempt = $attempt AND rank = $rank
ORDER BY name;
