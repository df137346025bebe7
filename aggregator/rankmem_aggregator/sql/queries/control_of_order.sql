-- Question: What came of an order of rankmem control, at each rank that was told?
-- Parameters:
--   session (text): session id
--   order_id (count): the order
-- Columns:
--   all columns of the view control
-- Scatter: none
SELECT *
FROM control
WHERE session_id = $session AND order_id = $order_id
ORDER BY attempt, rank;
