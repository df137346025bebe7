-- Question: Which segments and blocks did the allocator of a device hold when its recording began?
-- Parameters:
--   session (text): session id
--   attempt (count): which start of the workers
--   rank (count): global rank
--   device (text): device type and index
-- Columns:
--   kind (text): segment or block
--   allocation_id: of a block, negative; of a segment NULL
--   address, size_bytes, stream, pool: as in older_segment and allocation_record
--   block_bytes: of a block the allocator's own size, where it is recorded
-- Scatter: none
SELECT
    'segment' AS kind, NULL::BIGINT AS allocation_id, address, size_bytes, NULL::BIGINT AS block_bytes, stream, pool
FROM older_segment
WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device AND address <> 0
UNION ALL
SELECT 'block', allocation_id, address, size_bytes, block_bytes, stream, pool
FROM allocation_record
WHERE session_id = $session
    AND attempt = $attempt
    AND rank = $rank
    AND device = $device
    AND preexisting
    AND address IS NOT NULL
    AND component IN ('pytorch', 'cuda_graph', 'mem_pool')
ORDER BY kind, address, allocation_id;
