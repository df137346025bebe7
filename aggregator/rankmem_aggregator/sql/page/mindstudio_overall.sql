-- Question: What does MindStudio's memory page show of a rank, grouped by Overall?
-- Parameters:
--   session (text): session id
--   rank (count): global rank
-- Columns:
--   time_ms (ms): from the start of the session
--   legend: name of the curve, as MindStudio writes it
--   mb (MB of 1024 * 1024 bytes): its value
SELECT time_ms, legend, mb
FROM mindstudio.overall_curve($session, $rank)
WHERE time_ms IS NOT NULL
ORDER BY legend, time_ms, mb;
