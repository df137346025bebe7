-- Question: What did the devices of a side of a comparison hold, each after an event of its own?
-- Parameters:
--   session (text): session id
--   by (text): a grouping of blocks
--   lines: true where by is line; NULL where not: then no stack is looked at
--   points (JSON text): the devices and events, rows of side_points_peak and its like
-- Columns:
--   group_name: the group; NULL for blocks that have none
--   bytes (bytes): alive then
--   blocks: how many
--   largest_bytes (bytes): the largest of them
--   num_ranks: ranks of the side that hold anything, in every row
WITH held AS MATERIALIZED (
    SELECT
        l.*
        REPLACE (s.line AS line)  -- only with $lines
    FROM (
        SELECT *, NULL::VARCHAR AS line
        FROM live_at_points(
            $session,
            $points::VARCHAR::JSON::STRUCT(
                attempt INTEGER, rank INTEGER, device VARCHAR, offset_ns BIGINT, seq BIGINT
            )[]
        )
    ) AS l
    LEFT JOIN stack AS s ON s.stack_id = coalesce(l.forward_stack_id, l.stack_id)  -- only with $lines
)
SELECT
    group_of_block($by, b) AS group_name,
    sum(b.size_bytes)::BIGINT AS bytes,
    count(*) AS blocks,
    max(b.size_bytes) AS largest_bytes,
    (SELECT count(DISTINCT rank) FROM held) AS num_ranks
FROM held AS b
CROSS JOIN unstreamed
GROUP BY group_name
ORDER BY bytes DESC, group_name;
