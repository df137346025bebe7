-- Question: How high did each rank get, on each device and attempt? The highest first.
-- Parameters:
--   session (text): session id
--   attempt (count): which start of the workers; NULL for all
--   rank (count): global rank; NULL for all
-- Columns:
--   all columns of the view peak_by_rank
SELECT * FROM peak_by_rank
WHERE session_id = $session
    AND ($attempt::INTEGER IS NULL OR attempt = $attempt)
    AND ($rank::INTEGER IS NULL OR rank = $rank)
ORDER BY peak_requested_bytes DESC, attempt, rank, device;
