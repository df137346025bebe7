-- Question: What did the devices of a side of a comparison hold, each after an event of its own?
-- Parameters:
--   session (text): session id
--   by (text): a grouping of blocks
--   points (JSON text): the devices and events, rows of side_points_peak and its like
-- Columns:
--   group_name: the group; NULL for blocks that have none
--   bytes (bytes): alive then
--   blocks: how many
--   largest_bytes (bytes): the largest of them
--   num_ranks: ranks of the side that hold anything, in every row
WITH held AS MATERIALIZED (
    SELECT *
    FROM held_at_points(
        $session,
        $by,
        $points::VARCHAR::JSON::STRUCT(
            attempt INTEGER, rank INTEGER, device VARCHAR, offset_ns BIGINT, seq BIGINT
        )[]
    )
)
SELECT
    group_name,
    sum(live_bytes)::BIGINT AS bytes,
    sum(live_allocations)::BIGINT AS blocks,
    max(largest_bytes) AS largest_bytes,
    (SELECT count(DISTINCT rank) FROM held) AS num_ranks
FROM held
GROUP BY group_name
ORDER BY bytes DESC, group_name;
