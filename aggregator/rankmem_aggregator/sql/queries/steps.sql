-- Question: How high did each training step get, how much did it allocate, and what does memory gain from step to step?
-- Parameters:
--   session (text): session id
--   rank (count): global rank; NULL for all
-- Columns:
--   all columns of the macro step_total
SELECT * FROM step_total($session, of_rank := $rank::INTEGER)
ORDER BY rank, device, attempt, step;
