-- Question: What happened on a device of a rank in the last events before one?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   offset_ns (ns): added to its host's times
--   seq: the event, itself included
--   at_most: events
-- Columns:
--   seq, action, size_bytes, component, pool: as in memory_event
--   stream (text), address (text): the same as texts
--   time_ns (ns, common clock): when
--   requested_bytes, reserved_bytes (bytes): totals after it
--   block: the block it is about
--   operator, category, line: of that block: who made it, what it meant when its record was sent
WITH last_events AS MATERIALIZED (
    SELECT * REPLACE (coalesce(allocation_id, CASE WHEN action = 'alloc' THEN seq END) AS allocation_id)
    FROM memory_event
    WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device AND seq <= $seq
    ORDER BY seq DESC
    LIMIT $at_most
),
block AS MATERIALIZED (
    SELECT allocation_id, address, stream, operator, category, stack_id
    FROM allocation_record
    WHERE session_id = $session
        AND attempt = $attempt
        AND rank = $rank
        AND device = $device
        AND allocation_id IN (SELECT l.allocation_id FROM last_events AS l)
)
SELECT
    e.seq,
    e.time_ns + $offset_ns::BIGINT AS time_ns,
    e.action,
    e.size_bytes,
    e.component,
    e.pool,
    coalesce(e.stream, b.stream)::VARCHAR AS stream,
    '0x' || lower(hex(coalesce(e.address, b.address))) AS address,
    e.requested_bytes,
    e.reserved_bytes,
    e.allocation_id AS block,
    b.operator,
    b.category,
    k.line
FROM last_events AS e
LEFT JOIN block AS b USING (allocation_id)
LEFT JOIN stack AS k ON k.stack_id = coalesce(e.stack_id, b.stack_id)
CROSS JOIN unstreamed
ORDER BY e.seq DESC;
