-- Question: How did the totals go up and down, record by record?
-- Columns:
--   sessionId, attempt, rankId: whose; MindStudio's own shape is * EXCLUDE (sessionId, attempt, rankId)
--   component: id of PTA (the framework's allocator), GE, PTA+GE (their sum; without GE the same as PTA),
--     MindSpore, MindSpore+GE, WORKSPACE or APP
--   timestamp (ns, common clock): when
--   totalAllocated, totalReserved, totalActive (bytes): after it; the allocator's own where known, else requested
--   streamPtr: stream of the record; of a sum the last known; NULL for APP and on cpu
--   deviceId: index of the device; -1 for host memory
-- Scatter: hosts
CREATE OR REPLACE VIEW mindstudio.MEMORY_RECORD AS
SELECT
    t.session_id AS sessionId,
    t.attempt,
    t.rank AS rankId,
    mindstudio.id_of(r.component) AS component,
    t.time_ns AS timestamp,
    r.allocated AS totalAllocated,
    r.reserved AS totalReserved,
    r.active AS totalActive,
    r.stream AS streamPtr,
    mindstudio.device_id(t.device) AS deviceId
FROM mindstudio.component_total AS t
CROSS JOIN LATERAL (
    SELECT
        t.component AS component,
        t.allocated_bytes AS allocated,
        t.reserved_bytes AS reserved,
        t.active_bytes AS active,
        t.stream AS stream
    FROM unstreamed
    UNION ALL
    SELECT t.sum_name, t.sum_allocated_bytes, t.sum_reserved_bytes, t.sum_active_bytes, t.sum_stream
) AS r
WHERE r.component IS NOT NULL
UNION ALL
SELECT
    session_id, attempt, rank, mindstudio.id_of('APP'), time_ns, NULL, app_reserved_bytes, NULL, NULL,
    mindstudio.device_id(device)
FROM app_curve
WHERE app_reserved_bytes IS NOT NULL;

COMMENT ON VIEW mindstudio.MEMORY_RECORD IS 'MEMORY_RECORD, of all sessions and ranks.';
