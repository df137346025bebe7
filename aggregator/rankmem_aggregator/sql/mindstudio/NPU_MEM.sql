-- Question: What did the process, and the device as a whole, hold?
-- Columns:
--   sessionId, attempt, rankId: whose; MindStudio's own shape is * EXCLUDE (sessionId, attempt, rankId)
--   type: id of app (the process) or device (all processes)
--   ddr, hbm (bytes): of host memory, of device memory
--   timestampNs (ns, common clock): when
--   deviceId: index of the device; -1 for host memory
-- Scatter: hosts
CREATE OR REPLACE VIEW mindstudio.NPU_MEM AS
SELECT
    p.session_id AS sessionId,
    p.attempt,
    p.rank AS rankId,
    mindstudio.id_of(t.type) AS type,
    CASE WHEN p.device = 'cpu' THEN t.bytes ELSE 0 END AS ddr,
    CASE WHEN p.device = 'cpu' THEN 0 ELSE t.bytes END AS hbm,
    p.time_ns AS timestampNs,
    mindstudio.device_id(p.device) AS deviceId
FROM app_curve AS p
CROSS JOIN LATERAL (
    SELECT 'app' AS type, p.app_reserved_bytes AS bytes
    FROM unstreamed
    UNION ALL
    SELECT 'device', p.device_used_bytes
) AS t
WHERE t.bytes IS NOT NULL;

COMMENT ON VIEW mindstudio.NPU_MEM IS 'NPU_MEM, of all sessions and ranks.';
