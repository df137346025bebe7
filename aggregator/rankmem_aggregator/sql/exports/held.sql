-- Question: Which blocks of a device of a rank were alive right after an event of its log?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   at_seq: the event
-- Columns:
--   allocation_id, address, size_bytes, stream, pool, component, operator, stack_id: as in the view allocation
--   category: the last known
--   awaiting_free: true where its free had been requested by then
WITH ending AS (
    SELECT allocation_id, max(free_requested_seq) AS free_requested_seq, max(freed_seq) AS freed_seq
    FROM allocation_end
    WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device
    GROUP BY allocation_id
),
meaning AS (
    SELECT allocation_id, arg_max(category, (seq, time_ns)) AS category
    FROM category_change
    WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device AND seq <= $at_seq
    GROUP BY allocation_id
)
SELECT
    r.allocation_id,
    r.address,
    r.size_bytes,
    r.stream,
    r.pool,
    r.component,
    r.operator,
    r.stack_id,
    coalesce(t.category, r.category, 'unknown') AS category,
    coalesce(coalesce(r.free_requested_seq, e.free_requested_seq) <= $at_seq, false) AS awaiting_free
FROM allocation_record AS r
LEFT JOIN ending AS e USING (allocation_id)
LEFT JOIN meaning AS t USING (allocation_id)
WHERE r.session_id = $session
    AND r.attempt = $attempt
    AND r.rank = $rank
    AND r.device = $device
    AND r.allocation_id <= $at_seq
    AND (coalesce(r.freed_seq, e.freed_seq) IS NULL OR coalesce(r.freed_seq, e.freed_seq) > $at_seq)
ORDER BY r.address, r.allocation_id;
