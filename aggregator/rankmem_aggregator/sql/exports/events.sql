-- Question: What happened on a device of a rank, with the stack of each event?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   offset_ns (ns): added to its host's times
--   first, last: positions of the log
-- Columns:
--   seq, action, address, size_bytes, stream, pool, component, allocation_id, call_id, thread: as in memory_event
--   time_ns (ns, common clock): when
--   requested_bytes, allocated_bytes, active_bytes, reserved_bytes: totals after it
--   stack_id: of the event itself where it has one; of the block where it is an alloc, else of the event's call
--   category: of an alloc the block's last known
--   device_free_bytes: of an oom what was free on the device, where known
WITH made AS (
    SELECT r.allocation_id, r.stack_id, r.category
    FROM allocation_record AS r
    WHERE r.session_id = $session
        AND r.attempt = $attempt
        AND r.rank = $rank
        AND r.device = $device
        AND r.allocation_id BETWEEN $first AND $last
),
meaning AS (
    SELECT allocation_id, arg_max(category, (seq, time_ns)) AS category
    FROM category_change
    WHERE session_id = $session
        AND attempt = $attempt
        AND rank = $rank
        AND device = $device
        AND allocation_id BETWEEN $first AND $last
    GROUP BY allocation_id
),
call AS (
    SELECT call_id, stack_id
    FROM operator_call
    WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND stack_id IS NOT NULL
),
failed AS (
    SELECT seq, any_value(device_free_bytes) AS device_free_bytes
    FROM oom
    WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device
    GROUP BY seq
)
SELECT
    e.seq,
    e.time_ns + $offset_ns::BIGINT AS time_ns,
    e.action,
    e.address,
    e.size_bytes,
    e.stream,
    e.pool,
    e.component,
    e.allocation_id,
    e.call_id,
    e.thread,
    e.requested_bytes,
    e.allocated_bytes,
    e.active_bytes,
    e.reserved_bytes,
    coalesce(e.stack_id, m.stack_id, c.stack_id) AS stack_id,
    CASE WHEN e.action = 'alloc' THEN coalesce(t.category, m.category, 'unknown') END AS category,
    f.device_free_bytes
FROM memory_event AS e
LEFT JOIN made AS m ON e.action = 'alloc' AND m.allocation_id = e.seq
LEFT JOIN meaning AS t ON e.action = 'alloc' AND t.allocation_id = e.seq
LEFT JOIN call AS c ON c.call_id = e.call_id
LEFT JOIN failed AS f ON e.action = 'oom' AND f.seq = e.seq
WHERE e.session_id = $session
    AND e.attempt = $attempt
    AND e.rank = $rank
    AND e.device = $device
    AND e.seq BETWEEN $first AND $last
ORDER BY e.seq;
