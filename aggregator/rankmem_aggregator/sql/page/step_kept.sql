-- Question: What of a step was still there some steps later, on some devices? What is alive at the end first.
-- Parameters:
--   session (text): session id
--   points (JSON text): the devices, a list of {attempt, rank, device}, one for each rank of an attempt
--   rank_first, rank_last (count): the lowest and the highest of their ranks
--   by (text): operator, module, line, category, phase, step, annotation, stream or component
--   keep (count): a block counts if it was alive at the end of the step so many steps after its own
--   since (count): of blocks made in this step or a later one
-- Columns:
--   group_name: the group; NULL for blocks without one. Of line: of the forward call, for blocks of backward. Of
--     category: what the bytes meant last
--   function: of line: the function of that line; else NULL
--   alive_bytes (bytes): of its blocks that count, alive at the end of the last step
--   alive_blocks: how many
--   kept_bytes (bytes): of all its blocks that count, also those freed since
--   kept_blocks: how many
--   num_ranks: ranks that hold or held some
--   num_steps: steps that made some, on any of the ranks
--   first_step, last_step: the first and the last of them
--   largest_bytes (bytes): the largest block
--   looked_at: steps whose blocks could be looked at: of this step or later, and so many steps before the last
WITH point AS MATERIALIZED (
    SELECT p.attempt, p.rank, p.device
    FROM (
        SELECT unnest($points::VARCHAR::JSON::STRUCT(attempt INTEGER, rank INTEGER, device VARCHAR)[]) AS p
    )
),
ended AS MATERIALIZED (
    SELECT
        *,
        row_number() OVER (PARTITION BY attempt, rank ORDER BY seq) AS place,
        count(*) OVER (PARTITION BY attempt, rank) AS places,
        max(seq) OVER (PARTITION BY attempt, rank) AS last_seq
    FROM (
        SELECT attempt, rank, step, max(s.seq) AS seq
        FROM step AS s
        INNER JOIN point USING (attempt, rank)
        WHERE s.session_id = $session AND s.rank BETWEEN $rank_first AND $rank_last
        GROUP BY attempt, rank, step
    )
),
ending AS (
    SELECT attempt, rank, allocation_id, max(e.freed_seq) AS freed_seq
    FROM allocation_end AS e
    INNER JOIN point USING (attempt, rank, device)
    WHERE e.session_id = $session AND e.rank BETWEEN $rank_first AND $rank_last
    GROUP BY attempt, rank, allocation_id
),
block AS (
    SELECT r.*, coalesce(r.freed_seq, e.freed_seq) AS gone_seq
    FROM allocation_record AS r
    INNER JOIN point USING (attempt, rank, device)
    LEFT JOIN ending AS e USING (attempt, rank, allocation_id)
    WHERE r.session_id = $session AND r.rank BETWEEN $rank_first AND $rank_last AND NOT r.preexisting
),
kept AS MATERIALIZED (
    SELECT m.*, m.gone_seq IS NULL OR m.gone_seq > m.last_seq AS is_alive
    FROM (
        SELECT b.*, e.step AS made_step, e.place, e.last_seq
        FROM (
            -- What is as old as the shortest such time: hardly any block, so that few are matched with their steps.
            SELECT *
            FROM block
            WHERE gone_seq IS NULL
                OR gone_seq - allocation_id > (
                    SELECT min(t.seq - f.seq)
                    FROM ended AS f
                    INNER JOIN ended AS t
                        ON t.attempt = f.attempt AND t.rank = f.rank AND t.place = f.place + $keep
                )
        ) AS b
        ASOF INNER JOIN ended AS e ON b.attempt = e.attempt AND b.rank = e.rank AND b.allocation_id <= e.seq
    ) AS m
    INNER JOIN ended AS later
        ON later.attempt = m.attempt AND later.rank = m.rank AND later.place = m.place + $keep
    WHERE m.made_step >= $since AND (m.gone_seq IS NULL OR m.gone_seq > later.seq)
),
meaning AS (
    SELECT attempt, rank, allocation_id, arg_max(c.category, (c.seq, c.time_ns)) AS category
    FROM category_change AS c
    INNER JOIN point USING (attempt, rank, device)
    WHERE $by = 'category' AND c.session_id = $session AND c.rank BETWEEN $rank_first AND $rank_last
    GROUP BY attempt, rank, allocation_id
)
SELECT
    group_of(
        $by, k.operator, k.module, s.line, coalesce(m.category, k.category, 'unknown'), k.phase, k.made_step, k.annotation,
        k.stream, k.component
    ) AS group_name,
    CASE WHEN $by = 'line' THEN any_value(s.function) END AS function,
    coalesce(sum(k.size_bytes) FILTER (WHERE k.is_alive), 0)::BIGINT AS alive_bytes,
    count(*) FILTER (WHERE k.is_alive) AS alive_blocks,
    sum(k.size_bytes)::BIGINT AS kept_bytes,
    count(*) AS kept_blocks,
    count(DISTINCT k.rank) AS num_ranks,
    count(DISTINCT k.made_step) AS num_steps,
    min(k.made_step) AS first_step,
    max(k.made_step) AS last_step,
    max(k.size_bytes) AS largest_bytes,
    (SELECT count(DISTINCT step) FROM ended WHERE step >= $since AND place + $keep <= places) AS looked_at
FROM kept AS k
LEFT JOIN meaning AS m USING (attempt, rank, allocation_id)
LEFT JOIN stack AS s ON $by = 'line' AND s.stack_id = coalesce(k.forward_stack_id, k.stack_id)
CROSS JOIN unstreamed
GROUP BY group_name
ORDER BY alive_bytes DESC, kept_bytes DESC, group_name;
