-- Question: Which line of the user's project is nearest to the operator, of some stacks?
-- Parameters:
--   session (text): session id, of no effect: stacks are shared
--   stacks (text): their ids with commas between
-- Columns:
--   stack_id: the stack
--   line: as in the view stack; NULL where no frame is Python's
WITH wanted AS (
    SELECT unnest(string_split($stacks, ',')::BIGINT[]) AS stack_id
    WHERE $session IS NOT NULL
)
SELECT stack_id, line
FROM stack
INNER JOIN wanted USING (stack_id)
ORDER BY stack_id;
