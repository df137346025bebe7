-- Question: Which block did each operator allocate, when was it released, and what were the totals then?
-- Columns:
--   sessionId, attempt, rankId: whose; MindStudio's own shape is * EXCLUDE (sessionId, attempt, rankId)
--   name: id of the operator
--   size (bytes): requested size
--   allocationTime, releaseTime, activeReleaseTime (ns, common clock): alloc, free requested, block given back
--   duration, activeDuration (ns): from allocationTime to the other two
--   allocationTotalAllocated, allocationTotalReserved, allocationTotalActive (bytes): after the alloc
--   releaseTotalAllocated, releaseTotalReserved, releaseTotalActive (bytes): after the release; all six of the
--     block's component
--   streamPtr: its stream
--   deviceId: index of the device; -1 for host memory
-- Scatter: hosts
CREATE OR REPLACE VIEW mindstudio.OP_MEMORY AS
SELECT
    a.session_id AS sessionId,
    a.attempt,
    a.rank AS rankId,
    mindstudio.id_of(coalesce(a.operator, 'unknown')) AS name,
    a.size_bytes AS size,
    a.allocated_ns AS allocationTime,
    coalesce(a.free_requested_ns, a.freed_ns) AS releaseTime,
    CASE WHEN a.component <> 'ge' THEN a.freed_ns END AS activeReleaseTime,
    coalesce(a.free_requested_ns, a.freed_ns) - a.allocated_ns AS duration,
    activeReleaseTime - a.allocated_ns AS activeDuration,
    m.allocated_bytes AS allocationTotalAllocated,
    m.reserved_bytes AS allocationTotalReserved,
    CASE WHEN a.component <> 'ge' THEN m.active_bytes END AS allocationTotalActive,
    r.allocated_bytes AS releaseTotalAllocated,
    r.reserved_bytes AS releaseTotalReserved,
    CASE WHEN a.component <> 'ge' THEN r.active_bytes END AS releaseTotalActive,
    a.stream AS streamPtr,
    mindstudio.device_id(a.device) AS deviceId
FROM allocation_life AS a
LEFT JOIN mindstudio.component_total AS m
    ON m.session_id = a.session_id
    AND m.attempt = a.attempt
    AND m.rank = a.rank
    AND m.device = a.device
    AND m.seq = a.allocation_id
LEFT JOIN mindstudio.component_total AS r
    ON r.session_id = a.session_id
    AND r.attempt = a.attempt
    AND r.rank = a.rank
    AND r.device = a.device
    AND r.seq = coalesce(a.free_requested_seq, a.freed_seq)
WHERE a.device <> 'pinned'
    -- Blocks known from a recording's totals alone have no row there.
    AND NOT (a.operator IS NULL AND a.address IS NULL AND split_part(a.device, ':', 1) = 'npu');

COMMENT ON VIEW mindstudio.OP_MEMORY IS 'OP_MEMORY, of all sessions and ranks.';
