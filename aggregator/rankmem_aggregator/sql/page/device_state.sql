-- Question: What made up a device of a rank after some of its events: segments that came and went, and blocks?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   instants (JSON text): the events, a list of seqs in order; of segments all that came until the last of them, of
--     blocks those alive after one of them
--   seq_first, seq_last: the first and the last of them
--   at_most (count): rows at most, those that came first; NULL: all
-- Columns:
--   kind (text): segment, an action on one, or block, the life of one
--   seq: of a segment the position of the action; of a block its alloc, negative where that is older than the recording
--   action (text): segment_alloc, segment_free, segment_map, segment_unmap; of a segment older than the recording
--     segment_alloc; of a block NULL
--   address, size_bytes, stream, pool, component: as in memory_event
--   free_requested_seq, freed_seq: of a block the events that freed its tensor and gave it back; NULL where there is none
--   category, operator, line, stack_id: of a block what it meant after the last of them, and who made it
WITH instant AS MATERIALIZED (
    SELECT unnest($instants::VARCHAR::JSON::BIGINT[]) AS seq
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
        $session, $attempt::INTEGER, $rank::INTEGER, $device, 0,
        until_seq := $seq_last::BIGINT, after_seq := $seq_first::BIGINT
    ) AS b
    ASOF INNER JOIN instant AS i ON b.allocation_id <= i.seq
    LEFT JOIN stack AS k ON k.stack_id = coalesce(b.forward_stack_id, b.stack_id)
    WHERE b.allocation_id <= $seq_last AND (b.freed_seq IS NULL OR b.freed_seq > i.seq)
)
SELECT part.* FROM part
CROSS JOIN unstreamed
ORDER BY seq, kind DESC, address
LIMIT $at_most;
