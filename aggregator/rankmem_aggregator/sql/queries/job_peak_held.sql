-- Question: What held the memory of the job at the instant of its peak?
-- Parameters:
--   session (text): session id
--   by (text): operator, module, line, category, phase, step, annotation, stream or component
--   shares (text): rows of job_peak where they are known; NULL: it is asked again
-- Columns:
--   all columns of the macro job_peak_held
SELECT * FROM job_peak_held($session, $by, of_shares := $shares::VARCHAR)
ORDER BY device_type, live_bytes DESC, group_name;
