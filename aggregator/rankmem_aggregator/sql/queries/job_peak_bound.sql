-- Question: How far below the sum of the ranks' peaks is the job's, and could the clocks change it?
-- Parameters:
--   session (text): session id
--   shares (text): rows of job_peak where they are known; NULL: it is asked again
-- Columns:
--   all columns of the macro job_peak_bound
SELECT * FROM job_peak_bound($session, of_shares := $shares::VARCHAR)
ORDER BY device_type;
