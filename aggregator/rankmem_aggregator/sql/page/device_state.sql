-- Question: What made up a device of a rank in a range of its log: segments that came and went, and blocks?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   seq_first, seq_last: the range; of segments all that came before its end, of blocks those alive at some point of it
-- Columns:
--   kind (text): segment, an action on one, or block, the life of one
--   seq: of a segment the position of the action; of a block its alloc, negative where that is older than the recording
--   action (text): segment_alloc, segment_free, segment_map, segment_unmap; of a segment older than the recording
--     segment_alloc; of a block NULL
--   address, size_bytes, stream, pool, component: as in memory_event
--   free_requested_seq, freed_seq: of a block the events that freed its tensor and gave it back; NULL where there is none
--   category, operator, line, stack_id: of a block what it meant at the end of the range, and who made it
WITH ending AS MATERIALIZED (
    SELECT
        allocation_id,
        max(free_requested_seq) AS free_requested_seq,
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
part AS (
    SELECT
        'segment' AS kind, seq, 'segment_alloc' AS action, address, size_bytes, stream, pool,
        NULL::VARCHAR AS component, NULL::BIGINT AS free_requested_seq, NULL::BIGINT AS freed_seq,
        NULL::VARCHAR AS category, NULL::VARCHAR AS operator, NULL::VARCHAR AS line, NULL::BIGINT AS stack_id
    FROM older_segment
    WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device AND seq <= $seq_last
    UNION ALL
    SELECT
        'segment', seq, action, address, size_bytes, stream, pool, component, NULL, NULL, NULL, NULL, NULL, NULL
    FROM memory_event
    WHERE session_id = $session
        AND attempt = $attempt
        AND rank = $rank
        AND device = $device
        AND seq <= $seq_last
        AND action IN ('segment_alloc', 'segment_free', 'segment_map', 'segment_unmap')
    UNION ALL
    SELECT
        'block',
        r.allocation_id,
        NULL,
        r.address,
        r.size_bytes,
        r.stream,
        r.pool,
        r.component,
        coalesce(r.free_requested_seq, e.free_requested_seq),
        coalesce(r.freed_seq, e.freed_seq),
        meaning_of(coalesce(m.category, r.category), r.preexisting),
        r.operator,
        k.line,
        r.stack_id
    FROM allocation_record AS r
    LEFT JOIN ending AS e USING (allocation_id)
    LEFT JOIN meaning AS m USING (allocation_id)
    LEFT JOIN stack AS k ON k.stack_id = coalesce(r.forward_stack_id, r.stack_id)
    WHERE r.session_id = $session
        AND r.attempt = $attempt
        AND r.rank = $rank
        AND r.device = $device
        AND r.allocation_id <= $seq_last
        AND (coalesce(r.freed_seq, e.freed_seq) IS NULL OR coalesce(r.freed_seq, e.freed_seq) > $seq_first)
)
SELECT * FROM part
ORDER BY kind DESC, seq, address;
