-- Question: How much did each component reserve over time?
-- Columns:
--   sessionId, attempt, rankId: whose; MindStudio's own shape is * EXCLUDE (sessionId, attempt, rankId)
--   moduleId: the component; see ENUM_MODULE. APP is what the process holds beyond the others
--   timestampNs (ns, common clock): when
--   totalReserved (bytes): then, as a recording states it; else from segments, and of host memory the highest
--     requested bytes of each second
--   deviceId: index of the device; -1 for host memory
-- Scatter: hosts
CREATE OR REPLACE VIEW mindstudio.NPU_MODULE_MEM AS
WITH stated AS (
    SELECT
        session_id,
        attempt,
        rank,
        device,
        component,
        time_ns,
        sum(CASE WHEN action IN ('segment_alloc', 'segment_map') THEN size_bytes ELSE -size_bytes END) OVER (
            PARTITION BY session_id, attempt, rank, device, component ORDER BY seq ROWS UNBOUNDED PRECEDING
        )::BIGINT AS bytes
    FROM memory_event
    WHERE action IN ('segment_alloc', 'segment_map', 'segment_free', 'segment_unmap')
    UNION ALL
    SELECT
        session_id,
        attempt,
        rank,
        device,
        CASE device WHEN 'pinned' THEN 'pinned_host' ELSE 'pytorch' END,
        arg_max(requested_peak_ns, (requested_peak_bytes, -seq_first)),
        max(requested_peak_bytes)
    FROM memory_bucket
    WHERE device IN ('cpu', 'pinned')
    GROUP BY session_id, attempt, rank, device, bucket_ns
)
SELECT
    t.session_id AS sessionId,
    t.attempt,
    t.rank AS rankId,
    m.id AS moduleId,
    t.time_ns + coalesce(s.offset_ns, 0) AS timestampNs,
    t.bytes AS totalReserved,
    mindstudio.device_id(t.device) AS deviceId
FROM stated AS t
INNER JOIN mindstudio.ENUM_MODULE AS m ON m.name = upper(t.component)
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
UNION ALL
SELECT session_id, attempt, rank, 33, time_ns, app_bytes, mindstudio.device_id(device)
FROM app_curve
WHERE app_bytes IS NOT NULL AND split_part(device, ':', 1) <> 'npu'
UNION ALL
SELECT
    c.session_id,
    c.attempt,
    c.rank,
    m.id,
    c.time_ns + coalesce(s.offset_ns, 0),
    c.reserved_bytes,
    mindstudio.device_id(c.device)
FROM component_sample AS c
INNER JOIN mindstudio.ENUM_MODULE AS m
    ON m.name = CASE c.component WHEN 'pinned_host' THEN 'PINNED_HOST' ELSE c.component END
LEFT JOIN rank_span AS s USING (session_id, attempt, rank);

COMMENT ON VIEW mindstudio.NPU_MODULE_MEM IS 'NPU_MODULE_MEM, of all sessions and ranks.';
