-- Question: Which blocks of a device of a rank were alive at some point of a range of its log?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   offset_ns (ns): added to its host's times
--   seq_first, seq_last: the range; a block whose free was completed at or before its first position is not in it
-- Columns:
--   allocation_id, address, size_bytes, stream, pool, component, operator, module, phase, step, annotation,
--     stack_id, preexisting: as in the view allocation
--   line: the line of the project that made it; of a block of backward that of the forward call it belongs to
--   category: what the bytes meant at the end of the range
--   allocated_ns (ns, common clock): when; NULL for a block older than the recording
--   free_requested_seq: the event that freed its tensor, where the allocator reports it
--   freed_ns (ns, common clock), freed_seq: when the block was given back; NULL if not known to be
WITH ending AS MATERIALIZED (
    SELECT
        allocation_id,
        max(free_requested_seq) AS free_requested_seq,
        max(freed_ns) AS freed_ns,
        max(freed_seq) AS freed_seq
    FROM allocation_end
    WHERE session_id = $session
        AND attempt = $attempt
        AND rank = $rank
        AND device = $device
        AND allocation_id <= $seq_last
    GROUP BY allocation_id
),
meaning AS MATERIALIZED (
    SELECT allocation_id, arg_max(category, (seq, time_ns)) AS category
    FROM category_change
    WHERE session_id = $session
        AND attempt = $attempt
        AND rank = $rank
        AND device = $device
        AND seq <= $seq_last
    GROUP BY allocation_id
),
life AS (
    SELECT
        r.*,
        coalesce(r.free_requested_seq, e.free_requested_seq) AS requested_seq,
        coalesce(r.freed_ns, e.freed_ns) + $offset_ns::BIGINT AS ended_ns,
        coalesce(r.freed_seq, e.freed_seq) AS ended_seq
    FROM allocation_record AS r
    LEFT JOIN ending AS e USING (allocation_id)
    WHERE r.session_id = $session
        AND r.attempt = $attempt
        AND r.rank = $rank
        AND r.device = $device
        AND r.allocation_id <= $seq_last
)
SELECT
    l.allocation_id,
    l.address,
    l.size_bytes,
    l.stream,
    l.pool,
    l.component,
    meaning_of(coalesce(m.category, l.category), l.preexisting) AS category,
    l.operator,
    l.module,
    l.phase,
    l.step,
    l.annotation,
    l.stack_id,
    k.line,
    l.preexisting,
    CASE WHEN NOT l.preexisting THEN l.allocated_ns + $offset_ns::BIGINT END AS allocated_ns,
    l.requested_seq AS free_requested_seq,
    l.ended_ns AS freed_ns,
    l.ended_seq AS freed_seq
FROM life AS l
LEFT JOIN meaning AS m USING (allocation_id)
LEFT JOIN stack AS k ON k.stack_id = coalesce(l.forward_stack_id, l.stack_id)
WHERE l.ended_seq IS NULL OR l.ended_seq > $seq_first
ORDER BY l.allocation_id;
