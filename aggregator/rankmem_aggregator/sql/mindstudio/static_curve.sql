-- Question: What does MindStudio show of a rank's static graph: how much is taken at each of its nodes?
-- Parameters:
--   of_session: session id
--   of_rank: global rank
--   of_graph: Graph ID
-- Columns:
--   node: Node Index; one past the last for what is never given back
--   size_mb (MB of 1024 * 1024 bytes): Size: taken by then and not given back
--   total_size_mb (MB of 1024 * 1024 bytes): Total Size: what the graph was given; NULL where it is not recorded
-- Scatter: none
CREATE OR REPLACE MACRO mindstudio.static_curve(of_session, of_rank, of_graph) AS TABLE
WITH block AS (
    SELECT operator, node_first, node_last, size_bytes
    FROM static_block
    WHERE session_id = of_session AND rank = of_rank AND graph_id = of_graph
),
node AS (
    SELECT node_first AS node, size_bytes AS change FROM block WHERE operator <> 'TOTAL' AND size_bytes <> 0
    UNION ALL
    SELECT node_last, -size_bytes FROM block WHERE operator <> 'TOTAL' AND size_bytes <> 0
),
placed AS (
    SELECT
        CASE WHEN node < 4294967295 THEN node ELSE max(node) FILTER (WHERE node < 4294967295) OVER () + 1 END AS node,
        change
    FROM node
)
SELECT
    node,
    sum(sum(change)) OVER (ORDER BY node ROWS UNBOUNDED PRECEDING) / 1048576 AS size_mb,
    (SELECT sum(size_bytes) FROM block WHERE operator = 'TOTAL') / 1048576 AS total_size_mb
FROM placed
CROSS JOIN unstreamed
GROUP BY node
ORDER BY node;

COMMENT ON MACRO TABLE mindstudio.static_curve IS 'MindStudio''s graph of a static graph: Size at each node, and Total Size.';
