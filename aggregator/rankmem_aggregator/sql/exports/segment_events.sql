-- Question: Which segments did the allocator of a device get and give back, up to a position of the log?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   before: events before this position
-- Columns:
--   seq, action, address, size_bytes, stream, pool, component: as in memory_event
SELECT seq, action, address, size_bytes, stream, pool, component
FROM memory_event
WHERE session_id = $session
    AND attempt = $attempt
    AND rank = $rank
    AND device = $device
    AND seq < $before
    AND action IN ('segment_alloc', 'segment_free', 'segment_map', 'segment_unmap')
ORDER BY seq;
