-- Question: How did the totals go up and down, record by record?
-- Columns:
--   sessionId, attempt, rankId: whose; MindStudio's own shape is * EXCLUDE (sessionId, attempt, rankId)
--   component: id of PTA (the framework's allocator), PTA+GE (the same, for there is no GE here) or APP
--   timestamp (ns, common clock): when
--   totalAllocated, totalReserved, totalActive (bytes): after it; the allocator's own where known, else requested
--   streamPtr: stream of the record; NULL for APP and on cpu
--   deviceId: index of the device; -1 for host memory
CREATE OR REPLACE VIEW mindstudio.MEMORY_RECORD AS
SELECT
    e.session_id AS sessionId,
    e.attempt,
    e.rank AS rankId,
    mindstudio.id_of(c.component) AS component,
    e.time_ns + coalesce(s.offset_ns, 0) AS timestamp,
    coalesce(e.allocated_bytes, e.requested_bytes) AS totalAllocated,
    coalesce(e.reserved_bytes, e.requested_bytes) AS totalReserved,
    coalesce(e.active_bytes, e.requested_bytes) AS totalActive,
    e.stream AS streamPtr,
    mindstudio.device_id(e.device) AS deviceId
FROM memory_event AS e
CROSS JOIN (SELECT unnest(['PTA', 'PTA+GE']) AS component) AS c
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
WHERE e.requested_bytes IS NOT NULL AND e.device <> 'pinned'
UNION ALL
SELECT
    session_id, attempt, rank, mindstudio.id_of('APP'), time_ns, NULL, app_reserved_bytes, NULL, NULL,
    mindstudio.device_id(device)
FROM app_curve
WHERE app_reserved_bytes IS NOT NULL;

COMMENT ON VIEW mindstudio.MEMORY_RECORD IS 'MEMORY_RECORD, of all sessions and ranks.';
