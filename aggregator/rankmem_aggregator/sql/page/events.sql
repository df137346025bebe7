-- Question: Which events does a device of a rank have around a position of its log, and which blocks do they belong to?
-- Parameters:
--   session (text): session id
--   attempt, rank, device: which device
--   offset_ns (ns): added to its host's times
--   around (count): the position
--   before, after (count): how many events up to it, and after it
--   actions (text): of memory_event, with commas between; NULL for all
-- Columns:
--   time_ns (ns, common clock): when
--   seq: position in the rank's log
--   action: what happened
--   address (text): of the block or segment, in hexadecimal digits
--   size_bytes (bytes): its size
--   stream (text): the device's stream; NULL on cpu
--   component: who allocated
--   requested, allocated, active, reserved (bytes): totals of the device after it; NULL where not known
--   allocation_id: the block's life; NULL of segments
--   category: what the block meant then
--   operator, module, phase, step: who made the block; of an event without a block, the operator that caused it
--   stack_id (text): stack of the event itself where a recording has one, else of its block
WITH around AS MATERIALIZED (
    (
        SELECT *
        FROM memory_event
        WHERE session_id = $session
            AND attempt = $attempt
            AND rank = $rank
            AND device = $device
            AND seq <= $around
            AND ($actions::VARCHAR IS NULL OR list_contains(string_split($actions, ','), action))
        ORDER BY seq DESC
        LIMIT $before
    )
    UNION ALL
    (
        SELECT *
        FROM memory_event
        WHERE session_id = $session
            AND attempt = $attempt
            AND rank = $rank
            AND device = $device
            AND seq > $around
            AND ($actions::VARCHAR IS NULL OR list_contains(string_split($actions, ','), action))
        ORDER BY seq
        LIMIT $after
    )
),
block AS MATERIALIZED (
    SELECT
        r.allocation_id, r.operator, r.module, r.phase, r.step, r.category, r.preexisting,
        coalesce(r.forward_stack_id, r.stack_id) AS stack_id
    FROM allocation_record AS r
    WHERE r.session_id = $session
        AND r.attempt = $attempt
        AND r.rank = $rank
        AND r.device = $device
        AND r.allocation_id IN (SELECT allocation_id FROM around)
),
meaning AS (
    SELECT e.seq, arg_max(c.category, (c.seq, c.time_ns)) AS category
    FROM category_change AS c
    INNER JOIN around AS e ON c.allocation_id = e.allocation_id AND c.seq <= e.seq
    WHERE c.session_id = $session AND c.attempt = $attempt AND c.rank = $rank AND c.device = $device
    GROUP BY e.seq
),
caller AS (
    SELECT call_id, operator, module, phase, step, stack_id
    FROM operator_call
    WHERE session_id = $session
        AND attempt = $attempt
        AND rank = $rank
        AND call_id IN (SELECT call_id FROM around WHERE allocation_id IS NULL)
)
SELECT
    e.time_ns + $offset_ns AS time_ns,
    e.seq,
    e.action,
    '0x' || lower(hex(e.address)) AS address,
    e.size_bytes,
    e.stream::VARCHAR AS stream,
    e.component,
    e.requested_bytes AS requested,
    e.allocated_bytes AS allocated,
    e.active_bytes AS active,
    e.reserved_bytes AS reserved,
    e.allocation_id,
    if(b.allocation_id IS NULL, NULL, meaning_of(coalesce(m.category, b.category), b.preexisting)) AS category,
    coalesce(b.operator, c.operator) AS operator,
    coalesce(b.module, c.module) AS module,
    coalesce(b.phase, c.phase) AS phase,
    coalesce(b.step, c.step) AS step,
    coalesce(e.stack_id, b.stack_id, c.stack_id)::VARCHAR AS stack_id
FROM around AS e
LEFT JOIN block AS b USING (allocation_id)
LEFT JOIN meaning AS m USING (seq)
LEFT JOIN caller AS c USING (call_id)
CROSS JOIN unstreamed
ORDER BY e.seq;
