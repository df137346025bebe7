-- Question: Which hosts are there, in the shape of MindStudio?
-- Columns:
--   hostUid: id of the host
--   hostName: what gethostname() gives
-- Scatter: none
CREATE OR REPLACE VIEW mindstudio.HOST_INFO AS
SELECT host_uid AS hostUid, host_name AS hostName FROM main.host_info;

COMMENT ON VIEW mindstudio.HOST_INFO IS 'HOST_INFO of an ascend_pytorch_profiler database, unchanged.';
