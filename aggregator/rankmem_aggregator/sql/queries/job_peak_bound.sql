-- Question: How far below the sum of the ranks' peaks is the job's, and could the clocks change it?
-- Parameters:
--   session (text): session id
-- Columns:
--   all columns of the macro job_peak_bound
SELECT * FROM job_peak_bound($session)
ORDER BY device_type;
