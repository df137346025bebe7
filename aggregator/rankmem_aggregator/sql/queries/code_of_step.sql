-- Question: Which code made blocks in a step of a rank?
-- Parameters:
--   session (text): session id
--   attempt (count): which start of the workers
--   rank (count): global rank
--   step (count): number of the step
-- Columns:
--   function: of the project's frame nearest to the operator, of backward's blocks that of the forward call
--   operator, module: that made them
-- Scatter: none
SELECT DISTINCT s.function, a.operator, a.module
FROM allocation_record AS a
LEFT JOIN stack AS s ON s.stack_id = coalesce(a.forward_stack_id, a.stack_id)
CROSS JOIN unstreamed
WHERE a.session_id = $session AND a.attempt = $attempt AND a.rank = $rank AND a.step = $step
ORDER BY function, operator, module;
