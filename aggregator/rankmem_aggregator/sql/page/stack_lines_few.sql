-- Question: Which line of the user's project is nearest to the operator, of a few stacks among very many?
-- Parameters:
--   session (text): session id, of no effect: stacks are shared
--   stacks (text): their ids with commas between
-- Columns:
--   stack_id: the stack
--   line: as in the view stack; NULL where no frame is Python's
-- As stack_lines.sql; a list is a filter that reaches the frames, a join is not, but each frame looks through the list.
SELECT stack_id, line
FROM stack
WHERE list_contains(string_split($stacks, ',')::BIGINT[], stack_id) AND $session IS NOT NULL
ORDER BY stack_id;
