-- Question: Which of MindStudio's components does a device have, and what did each hold before a range of its log?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   before: first position of the range
-- Columns:
--   component: PTA, GE, MindSpore or WORKSPACE
--   allocated_bytes, reserved_bytes, active_bytes (bytes): of the component alone
SELECT
    component,
    coalesce(arg_max(allocated_bytes, seq) FILTER (WHERE seq < $before), 0) AS allocated_bytes,
    coalesce(arg_max(reserved_bytes, seq) FILTER (WHERE seq < $before), 0) AS reserved_bytes,
    coalesce(arg_max(active_bytes, seq) FILTER (WHERE seq < $before), 0) AS active_bytes
FROM mindstudio.component_total
WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device
GROUP BY component
ORDER BY component;
