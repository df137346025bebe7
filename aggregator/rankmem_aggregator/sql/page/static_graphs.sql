-- Question: Which static graphs does a rank's recording have?
-- Parameters:
--   session (text): session id
--   rank (count): global rank
-- Columns:
--   graph_id: Graph ID
--   model: the model it belongs to
--   operators (count): blocks of its operators
--   total_bytes (bytes): what it was given in all; NULL where the recording does not have that
SELECT
    graph_id,
    min(model) AS model,
    count(*) FILTER (operator <> 'TOTAL') AS operators,
    sum(size_bytes) FILTER (operator = 'TOTAL')::BIGINT AS total_bytes
FROM static_block
WHERE session_id = $session AND rank = $rank
GROUP BY graph_id
ORDER BY graph_id;
