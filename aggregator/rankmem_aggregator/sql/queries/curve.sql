-- Question: How did a rank's memory go up and down, second by second?
-- Parameters:
--   session (text): session id
--   rank (count): global rank
--   attempt (count): which start of the workers; NULL for all
-- Columns:
--   all columns of the macro memory_curve
SELECT * FROM memory_curve($session, $rank, of_attempt := $attempt::INTEGER)
ORDER BY device, attempt, bucket_ns;
