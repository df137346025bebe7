-- Question: What did a rank hold after one of its events?
-- Parameters:
--   session (text): session id
--   by (text): a grouping of blocks
--   device_type (text): cpu, cuda, ...
--   kind, value (text): of all ranks (all), of one (rank), or of those with this value of host, dp, tp, pp, cp or ep
--   first: seq of the event, in the attempt in which the device stood highest; what it held after the last of its own
--     events until then
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
                SELECT e.attempt, e.rank, e.device, max(e.seq) AS seq
                FROM memory_event AS e
                INNER JOIN peak_by_rank AS h USING (session_id, attempt, rank, device)
                WHERE e.session_id = $session AND e.seq <= $first AND e.rank::VARCHAR = $value AND h.is_rank_peak
                GROUP BY e.attempt, e.rank, e.device
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
