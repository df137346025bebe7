-- Question: Which parameters does the model have on a rank? The largest first.
-- Parameters:
--   session (text): session id
--   rank (count): global rank; NULL for all
-- Columns:
--   all columns of the view weight_line, of each rank's last attempt that told any
SELECT * FROM weight_line
WHERE session_id = $session AND ($rank::INTEGER IS NULL OR rank = $rank)
QUALIFY attempt = max(attempt) OVER (PARTITION BY rank)
ORDER BY rank, size_bytes DESC, name;
