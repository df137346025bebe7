-- Question: Which device did each rank use?
-- Columns:
--   sessionId, attempt: of which job and start; MindStudio's own shape is * EXCLUDE (sessionId, attempt)
--   rankId: global rank
--   deviceId: index of its device; -1 for host memory
-- Scatter: hosts
CREATE OR REPLACE VIEW mindstudio.RANK_DEVICE_MAP AS
SELECT DISTINCT
    session_id AS sessionId,
    attempt,
    rank AS rankId,
    mindstudio.device_id(device) AS deviceId
FROM (
    SELECT session_id, attempt, rank, device FROM memory_bucket
    UNION
    SELECT session_id, attempt, rank, device FROM device_info
)
WHERE device <> 'pinned';

COMMENT ON VIEW mindstudio.RANK_DEVICE_MAP IS 'RANK_DEVICE_MAP, of all sessions.';
