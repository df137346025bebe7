-- Question: Which stacks have one of these lines, and one of these frames?
-- Parameters:
--   lines (JSON text): a list of lines as in the view stack, an empty text for stacks without one; NULL for all
--   frames (JSON text): a list of frames as in its column frames; NULL for all
-- Columns:
--   stack_id (text): a stack
SELECT s.stack_id::VARCHAR AS stack_id
FROM stack AS s
WHERE ($lines::VARCHAR IS NULL OR list_contains(json_extract_string($lines::VARCHAR, '$[*]')::VARCHAR[], coalesce(s.line, '')))
    AND (
        $frames::VARCHAR IS NULL
        OR len(list_intersect(json_extract_string($frames::VARCHAR, '$[*]')::VARCHAR[], s.frames)) > 0
    )
ORDER BY s.stack_id;
