-- Question: What does a stack look like?
-- Parameters:
--   session (text): session id, of no effect: stacks are shared
--   stack_id: the stack
-- Columns:
--   ordering: 0 is the frame nearest to the operator
--   file_path, line_number, function: as in stack_frame
--   origin: whose code it is: project, library or native
SELECT ordering, file_path, line_number, function, frame_origin(file_path, function) AS origin
FROM stack_frame
WHERE stack_id = $stack_id AND $session IS NOT NULL
ORDER BY ordering;
