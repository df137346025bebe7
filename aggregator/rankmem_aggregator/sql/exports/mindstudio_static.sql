-- Question: What do the static graphs of a rank plan?
-- Parameters:
--   session (text), attempt, rank: the rank
-- Columns:
--   device, operator, model, graph_id, node_first, node_last, size_bytes: as in static_block
SELECT device, operator, model, graph_id, node_first, node_last, size_bytes
FROM static_block
WHERE session_id = $session AND attempt = $attempt AND rank = $rank
ORDER BY graph_id, node_first, node_last, operator;
