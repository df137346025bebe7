-- Question: Which blocks of a device of a rank were alive at some point of a range of its log?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   offset_ns (ns): added to its host's times
--   seq_first, seq_last: the range; a block whose free was completed at or before its first position is not in it
--   pick (JSON text): groups that are picked, as in is_picked; NULL for all
-- Columns:
--   allocation_id, address, size_bytes, stream, pool, component, operator, module, phase, step, annotation,
--     stack_id, preexisting: as in the view allocation
--   line: the line of the project that made it; of a block of backward that of the forward call it belongs to
--   category: what the bytes meant at the end of the range
--   allocated_ns (ns, common clock): when; NULL for a block older than the recording
--   free_requested_seq: the event that freed its tensor, where the allocator reports it
--   freed_ns (ns, common clock), freed_seq: when the block was given back; NULL if not known to be
SELECT
    b.allocation_id,
    b.address,
    b.size_bytes,
    b.stream,
    b.pool,
    b.component,
    b.category,
    b.operator,
    b.module,
    b.phase,
    b.step,
    b.annotation,
    b.stack_id,
    k.line,
    b.preexisting,
    CASE WHEN NOT b.preexisting THEN b.allocated_ns END AS allocated_ns,
    b.free_requested_seq,
    b.freed_ns,
    b.freed_seq
FROM block_of_device(
    $session, $attempt::INTEGER, $rank::INTEGER, $device, $offset_ns::BIGINT, until_seq := $seq_last::BIGINT, after_seq := $seq_first::BIGINT
) AS b
LEFT JOIN stack AS k ON k.stack_id = coalesce(b.forward_stack_id, b.stack_id)
CROSS JOIN unstreamed
WHERE b.allocation_id <= $seq_last
    AND (b.freed_seq IS NULL OR b.freed_seq > $seq_first)
    AND is_picked($pick::VARCHAR, b)  -- only with $pick
ORDER BY b.allocation_id;
