-- Question: From when to when did each session run?
-- Columns:
--   sessionId: whose; MindStudio's own shape is * EXCLUDE (sessionId)
--   startTimeNs, endTimeNs (ns, common clock): first start, last end; NULL while it runs
-- Scatter: none
CREATE OR REPLACE VIEW mindstudio.SESSION_TIME_INFO AS
SELECT session_id AS sessionId, started_ns AS startTimeNs, ended_ns AS endTimeNs FROM session_facts;

COMMENT ON VIEW mindstudio.SESSION_TIME_INFO IS 'SESSION_TIME_INFO, of all sessions.';
