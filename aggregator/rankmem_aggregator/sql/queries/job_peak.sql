-- Question: At which instant did the sum over all ranks stand highest, and what was each rank's share then?
-- Parameters:
--   session (text): session id
-- Columns:
--   all columns of the macro job_peak
SELECT * FROM job_peak($session)
ORDER BY device_type, requested_bytes DESC, attempt, rank, device;
