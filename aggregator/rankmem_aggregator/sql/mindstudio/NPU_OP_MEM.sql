-- Question: Which operator allocated or released what, and what were the totals then?
-- Columns:
--   sessionId, attempt, rankId: whose; MindStudio's own shape is * EXCLUDE (sessionId, attempt, rankId)
--   operatorName: id of the operator
--   addr: address of the block
--   type: id of alloc or release
--   size (bytes): requested size; negative at a release
--   timestampNs (ns, common clock): when
--   globalTid: thread
--   totalAllocate, totalReserve (bytes): after it
--   component: id of PTA
--   deviceId: index of the device; -1 for host memory
-- Scatter: hosts
CREATE OR REPLACE VIEW mindstudio.NPU_OP_MEM AS
SELECT
    e.session_id AS sessionId,
    e.attempt,
    e.rank AS rankId,
    mindstudio.id_of(coalesce(a.operator, 'unknown')) AS operatorName,
    e.address AS addr,
    mindstudio.id_of(CASE e.action WHEN 'alloc' THEN 'alloc' ELSE 'release' END) AS type,
    CASE e.action WHEN 'alloc' THEN e.size_bytes ELSE -e.size_bytes END AS size,
    e.time_ns + coalesce(s.offset_ns, 0) AS timestampNs,
    e.thread AS globalTid,
    coalesce(e.allocated_bytes, e.requested_bytes) AS totalAllocate,
    coalesce(e.reserved_bytes, e.requested_bytes) AS totalReserve,
    mindstudio.id_of('PTA') AS component,
    mindstudio.device_id(e.device) AS deviceId
FROM memory_event AS e
LEFT JOIN allocation_record AS a USING (session_id, attempt, rank, device, allocation_id)
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
WHERE e.action IN ('alloc', 'free_completed');

COMMENT ON VIEW mindstudio.NPU_OP_MEM IS 'NPU_OP_MEM, of all sessions and ranks.';
