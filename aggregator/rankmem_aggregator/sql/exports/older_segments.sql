-- Question: Which segments did the allocator of a device hold when its recording began?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
-- Columns:
--   seq, address, size_bytes, stream, pool: as in older_segment
--   action, component: as an event that made it would have them
SELECT
    seq,
    'segment_alloc' AS action,
    address,
    size_bytes,
    stream,
    pool,
    CASE
        WHEN device = 'pinned' THEN 'pinned_host'
        WHEN pool IS NULL THEN 'pytorch'
        WHEN starts_with(pool, '0.') THEN 'mem_pool'
        ELSE 'cuda_graph'
    END AS component
FROM older_segment
WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device
ORDER BY seq, address;
