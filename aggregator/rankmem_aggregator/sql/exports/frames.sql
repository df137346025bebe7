-- Question: Which frames do some stacks have?
-- Parameters:
--   stacks (text): stack ids, separated by commas
-- Columns:
--   stack_id, ordering, file_path, line_number, function: as in stack_frame
SELECT stack_id, ordering, file_path, line_number, function
FROM stack_frame
WHERE stack_id IN (SELECT unnest(string_split($stacks, ','))::BIGINT)
ORDER BY stack_id, ordering;
