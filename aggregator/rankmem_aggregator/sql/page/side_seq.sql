-- Question: What did a rank hold after one of its events, on the device of that event?
-- Parameters:
--   session (text): session id
--   by (text): a grouping of blocks
--   device_type (text): cpu, cuda, ...
--   kind, value (text): of all ranks (all), of one (rank), or of those with this value of host, dp, tp, pp, cp or ep
--   first: seq of the event; of the last attempt that has it
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
        (
            SELECT list({attempt: p.attempt, rank: p.rank, device: p.device, seq: p.seq})
            FROM (
                SELECT attempt, rank, device, seq
                FROM memory_event
                WHERE session_id = $session AND seq = $first AND rank::VARCHAR = $value
                QUALIFY attempt = max(attempt) OVER ()
            ) AS p
            INNER JOIN rank_group($session, $kind) AS g USING (attempt, rank, device)
            WHERE split_part(p.device, ':', 1) = $device_type
                AND ($kind = 'all' OR CASE $kind WHEN 'rank' THEN p.rank::VARCHAR ELSE g.group_name END = $value)
        )
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
