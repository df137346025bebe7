-- Question: Which frames do some stacks have?
-- Parameters:
--   stacks (text): stack ids, separated by commas
-- Columns:
--   stack_id, ordering, file_path, line_number, function: as in stack_frame
--   in_project: whether it is the project's
--   line: of the whole stack, as in the view stack
WITH asked AS (
    SELECT unnest(string_split($stacks, ','))::BIGINT AS stack_id
)
SELECT
    f.stack_id,
    f.ordering,
    f.file_path,
    f.line_number,
    f.function,
    frame_origin(f.file_path, f.function) = 'project' AS in_project,
    s.line
FROM stack_frame AS f
JOIN stack AS s USING (stack_id)
WHERE f.stack_id IN (SELECT stack_id FROM asked)
ORDER BY f.stack_id, f.ordering;
