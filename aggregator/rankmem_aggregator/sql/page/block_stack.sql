-- Question: Which frames has the Python stack of a block of a device of a rank?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   block: its allocation id
-- Columns:
--   ordering: 0 is the frame nearest to the operator
--   frame: file:line function; where the job kept its files to itself the function; one row of NULLs where there is no stack
WITH found AS MATERIALIZED (
    SELECT coalesce(stack_id, forward_stack_id) AS stack_id
    FROM allocation_record
    WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device AND allocation_id = $block
)
SELECT
    f.ordering,
    CASE WHEN f.line_number = 0 THEN f.function ELSE f.file_path || ':' || f.line_number || ' ' || f.function END AS frame
FROM found
LEFT JOIN stack_frame AS f USING (stack_id)
CROSS JOIN unstreamed
ORDER BY f.ordering;
