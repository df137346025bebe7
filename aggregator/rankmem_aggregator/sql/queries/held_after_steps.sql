-- Question: By how much did what the blocks of a line and operator hold change from the end of a step to the next?
-- Parameters:
--   session (text): session id
--   rank (count): global rank; NULL for all
-- Columns:
--   attempt, rank, device: whose
--   line: of the project, nearest to the operator that made the blocks; of backward's blocks that of the forward call,
--     unless code of the project made them within backward, as a gradient's hook
--   operator: that made them
--   module: of the first of their modules by name
--   category: of the first of their categories by name, as known when the block was sent
--   kind: what all of them meant last; NULL where they did not mean the same
--   place (count): of the step among the rank's, from 0, in order of their ends
--   change_bytes (bytes): after this step less after the one before; of the first, what is held after it
--   change_blocks (count): the same of the number of blocks. Steps without a change have no row
--   made_bytes (bytes): of blocks that were made in this step and outlive it
-- Scatter: hosts
WITH ended AS MATERIALIZED (
    SELECT
        attempt,
        rank,
        seq,
        row_number() OVER (PARTITION BY attempt, rank ORDER BY seq) - 1 AS place
    FROM training_step($session, of_rank := $rank)
    WHERE seq IS NOT NULL
),
last_meaning AS (
    SELECT attempt, rank, device, allocation_id, arg_max(category, (seq, time_ns)) AS category
    FROM category_change
    WHERE session_id = $session AND ($rank::INTEGER IS NULL OR rank = $rank)
    GROUP BY attempt, rank, device, allocation_id
),
-- Most blocks die before any step ends: they are in no answer, and are left out before they are sorted.
held AS MATERIALIZED (
    SELECT
        b.attempt,
        b.rank,
        b.device,
        b.operator,
        b.module,
        b.first_category AS category,
        coalesce(m.category, b.first_category) AS meaning,
        b.forward_stack_id,
        b.stack_id,
        coalesce(b.requested_bytes, b.size_bytes) AS bytes,
        b.freed_seq,
        e.place
    FROM (
        SELECT b.*
        FROM allocation_life AS b
        LEFT JOIN (
            SELECT attempt, rank, step, min(seq) AS seq, arg_min(seq_before, seq) AS seq_before
            FROM (
                SELECT attempt, rank, step, seq, lag(seq, 1, -1) OVER (PARTITION BY attempt, rank ORDER BY seq) AS seq_before
                FROM step
                WHERE session_id = $session AND ($rank::INTEGER IS NULL OR rank = $rank)
            )
            GROUP BY attempt, rank, step
        ) AS e ON b.attempt = e.attempt AND b.rank = e.rank AND b.step = e.step
        WHERE b.session_id = $session
            AND ($rank::INTEGER IS NULL OR b.rank = $rank)
            AND NOT coalesce(b.allocation_id > e.seq_before AND b.freed_seq <= e.seq, false)
    ) AS b
    ASOF INNER JOIN ended AS e ON b.attempt = e.attempt AND b.rank = e.rank AND b.allocation_id <= e.seq
    LEFT JOIN last_meaning AS m
        ON b.attempt = m.attempt
        AND b.rank = m.rank
        AND b.device = m.device
        AND b.allocation_id = m.allocation_id
    WHERE b.freed_seq IS NULL OR b.freed_seq > e.seq
),
-- Stacks in which a frame of the project is nearer than the one that runs backward. The engine's own threads (CUDA)
-- have neither, but in a hook.
own AS (
    SELECT stack_id
    FROM stack_frame
    WHERE stack_id IN (SELECT stack_id FROM held WHERE forward_stack_id IS NOT NULL)
    GROUP BY stack_id
    HAVING min(ordering) FILTER (WHERE frame_origin(file_path, function) = 'project')
        < coalesce(min(ordering) FILTER (WHERE ends_with(function, '_engine_run_backward')), 1000000)
),
change AS (
    SELECT
        h.* EXCLUDE (freed_seq, bytes, place),
        w.blocks,
        w.blocks * h.bytes AS bytes,
        CASE WHEN w.blocks = 1 THEN h.place ELSE f.place END AS place
    FROM held AS h
    ASOF LEFT JOIN ended AS f ON h.attempt = f.attempt AND h.rank = f.rank AND h.freed_seq <= f.seq
    CROSS JOIN (VALUES (1), (-1)) AS w(blocks)
    WHERE w.blocks = 1 OR f.place IS NOT NULL
)
SELECT
    c.attempt,
    c.rank,
    c.device,
    s.line,
    c.operator,
    min(c.module) AS module,
    min(c.category) AS category,
    CASE WHEN min(c.first_meaning) = max(c.last_meaning) THEN min(c.first_meaning) END AS kind,
    c.place,
    sum(c.bytes)::BIGINT AS change_bytes,
    sum(c.blocks)::BIGINT AS change_blocks,
    sum(c.made)::BIGINT AS made_bytes
FROM (
    SELECT attempt, rank, device, line_stack_id AS stack_id, operator, place,
        min(module) AS module, min(category) AS category, sum(bytes) AS bytes, sum(blocks) AS blocks,
        min(meaning) AS first_meaning, max(meaning) AS last_meaning,
        coalesce(sum(bytes) FILTER (WHERE blocks > 0), 0) AS made
    FROM (
        SELECT
            *,
            CASE WHEN stack_id IN (SELECT stack_id FROM own) THEN stack_id ELSE coalesce(forward_stack_id, stack_id) END
                AS line_stack_id
        FROM change
    )
    GROUP BY attempt, rank, device, line_stack_id, operator, place
) AS c
LEFT JOIN stack AS s USING (stack_id)
CROSS JOIN unstreamed
GROUP BY c.attempt, c.rank, c.device, s.line, c.operator, c.place
HAVING sum(c.bytes) <> 0 OR sum(c.blocks) <> 0
ORDER BY attempt, rank, device, line, operator, place;
