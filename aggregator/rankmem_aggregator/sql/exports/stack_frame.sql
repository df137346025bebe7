-- Question: Which frames do the stacks of a session have?
-- Parameters:
--   session (text): session id
--   ranks (text): global ranks, separated by commas; NULL for all
-- Columns:
--   all columns of the table stack_frame
WITH used AS (
    SELECT session_id, rank, stack_id FROM allocation_record
    UNION ALL
    SELECT session_id, rank, forward_stack_id FROM allocation_record
    UNION ALL
    SELECT session_id, rank, stack_id FROM operator_call
    UNION ALL
    SELECT session_id, rank, forward_stack_id FROM operator_call
    UNION ALL
    SELECT session_id, rank, stack_id FROM weight
    UNION ALL
    SELECT session_id, rank, stack_id FROM oom
    UNION ALL
    SELECT session_id, rank, stack_id FROM memory_event
)
SELECT f.*
FROM stack_frame AS f
WHERE f.stack_id IN (
    SELECT stack_id
    FROM used
    WHERE session_id = $session
        AND ($ranks::VARCHAR IS NULL OR list_contains(string_split($ranks, ','), rank::VARCHAR))
)
ORDER BY f.stack_id, f.ordering;
