-- Question: What did some ranks allocate within a range of time?
-- Parameters:
--   session (text): session id
--   by (text): a grouping of blocks
--   device_type (text): cpu, cuda, ...
--   kind, value (text): of all ranks (all), of one (rank), or of those with this value of host, dp, tp, pp, cp or ep
--   first, last (ns, common clock): the range
--   kept (boolean): only what was not freed by its end
-- Columns:
--   group_name: the group; NULL for blocks that have none
--   bytes (bytes): allocated then
--   blocks: how many
--   largest_bytes (bytes): the largest of them
--   num_ranks: ranks of the side that hold anything, in every row
WITH made AS MATERIALIZED (
    SELECT a.*, s.line
    FROM allocation AS a
    INNER JOIN rank_group($session, $kind) AS g USING (attempt, rank, device)
    LEFT JOIN stack AS s ON $by = 'line' AND s.stack_id = coalesce(a.forward_stack_id, a.stack_id)
    WHERE a.session_id = $session
        AND split_part(a.device, ':', 1) = $device_type
        AND ($kind = 'all' OR CASE $kind WHEN 'rank' THEN a.rank::VARCHAR ELSE g.group_name END = $value)
        AND NOT a.preexisting
        AND a.allocated_ns BETWEEN $first AND $last
        AND (NOT $kept::BOOLEAN OR a.freed_ns IS NULL OR a.freed_ns > $last)
)
SELECT
    group_of_block($by, b) AS group_name,
    sum(b.size_bytes)::BIGINT AS bytes,
    count(*) AS blocks,
    max(b.size_bytes) AS largest_bytes,
    (SELECT count(DISTINCT rank) FROM made) AS num_ranks
FROM made AS b
CROSS JOIN unstreamed
GROUP BY group_name
ORDER BY bytes DESC, group_name;
