-- Question: How much is taken at each node of a rank's static graph?
-- Parameters:
--   session (text): session id
--   rank (count): global rank
--   graph (text): Graph ID
-- Columns:
--   node, size_mb, total_size_mb: as in mindstudio.static_curve
SELECT * FROM mindstudio.static_curve($session, $rank, $graph)
ORDER BY node;
