-- Question: What does a Python stack look like?
-- Parameters:
--   stack_id (id): the stack
-- Columns:
--   ordering: 0 is the frame nearest to the operator
--   file_path: relative to the project's root where inside it
--   line_number: from 1
--   function: qualified name
-- Scatter: none
SELECT ordering, file_path, line_number, function FROM stack_frame
WHERE stack_id = $stack_id
ORDER BY ordering;
