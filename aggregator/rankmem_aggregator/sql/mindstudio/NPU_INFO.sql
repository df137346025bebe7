-- Question: What is each device called?
-- Columns:
--   sessionId, attempt, rankId: whose; MindStudio's own shape is * EXCLUDE (sessionId, attempt, rankId)
--   id: index of the device; -1 for host memory
--   name: product name
-- Scatter: hosts
CREATE OR REPLACE VIEW mindstudio.NPU_INFO AS
SELECT session_id AS sessionId, attempt, rank AS rankId, mindstudio.device_id(device) AS id, name FROM device_info;

COMMENT ON VIEW mindstudio.NPU_INFO IS 'NPU_INFO, of all sessions and ranks.';
