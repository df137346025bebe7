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
WITH part AS (
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
        b.allocation_id,
        NULL,
        b.address,
        b.size_bytes,
        b.stream,
        b.pool,
        b.component,
        b.free_requested_seq,
        b.freed_seq,
        b.category,
        b.operator,
        k.line,
        b.stack_id
    FROM block_of_device(
        $session, $attempt::INTEGER, $rank::INTEGER, $device, 0, until_seq := $seq_last::BIGINT, after_seq := $seq_first::BIGINT
    ) AS b
    LEFT JOIN stack AS k ON k.stack_id = coalesce(b.forward_stack_id, b.stack_id)
    WHERE b.allocation_id <= $seq_last AND (b.freed_seq IS NULL OR b.freed_seq > $seq_first)
)
SELECT part.* FROM part
CROSS JOIN unstreamed
ORDER BY kind DESC, seq, address;
