-- Question: Which blocks does a rank's static graph place, from which node to which?
-- Parameters:
--   session (text): session id
--   rank (count): global rank
--   graph (text): Graph ID
--   at_most (count): rows; the largest
-- Columns:
--   operator: its name
--   node_first, node_last: nodes at which it is taken and given back; node_last NULL: never
--   size_bytes (bytes): how much
SELECT
    operator,
    node_first,
    CASE WHEN node_last < 4294967295 THEN node_last END AS node_last,
    size_bytes
FROM static_block
WHERE session_id = $session AND rank = $rank AND graph_id = $graph AND operator <> 'TOTAL'
ORDER BY size_bytes DESC, node_first, node_last, operator
LIMIT $at_most;
