-- Question: Which stacks does no row name any more?
-- Columns:
--   stack_id: its number
SELECT stack_id FROM (SELECT stack_id FROM stack_hash UNION SELECT stack_id FROM stack_frame)
EXCEPT
SELECT stack_id FROM (
    SELECT DISTINCT stack_id FROM allocation_record
    UNION ALL
    SELECT DISTINCT forward_stack_id FROM allocation_record
    UNION ALL
    SELECT DISTINCT stack_id FROM operator_call
    UNION ALL
    SELECT DISTINCT forward_stack_id FROM operator_call
    UNION ALL
    SELECT DISTINCT stack_id FROM oom
    UNION ALL
    SELECT DISTINCT stack_id FROM memory_event
    UNION ALL
    SELECT DISTINCT stack_id FROM weight
)
ORDER BY stack_id
