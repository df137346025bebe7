-- Question: Which blocks of a device of a rank were held longer than any use of them that is recorded?
-- Parameters:
--   session, attempt, rank, device: which device
--   offset_ns (ns): add to its host's times for the common clock
--   kind (text): early: from its allocation to its first use, where uses are recorded; idle: the longest time between two
--     uses, else from the end of the call that made it to the backward of that call; late: from its last use, else from
--     the end of that backward, to its free; wait: from the request of its free to the free; outlives: from the end of its step to its free;
--     not of parameters, the optimizer's state and key-value caches
--   from_ns, until_ns (ns, common clock): blocks whose such time touches this range, both ends included
--   end_ns (ns, common clock): the last event of the device: the end of what was not freed
--   least_ns (ns): that long at least
--   least_steps (count): for outlives, that many ends of steps later at least
--   has_steps: true where ends of steps are recorded
--   pick (JSON text): groups that are picked, as in is_picked; NULL for all
--   at_most (count): rows, those of the largest size times time first
-- Columns:
--   size_bytes, category, operator, module, line, phase, step, allocated_ns, freed_ns, allocation_id, stack_id: as in blocks
--   held_from_ns, held_until_ns (ns, common clock): from when to when it was held without a use
--   held_ns (ns): that long
--   held_steps (count): ends of steps in that time; NULL where none is recorded
--   wasted_gib_s: its size times that time, in GiB seconds
--   all_blocks, all_bytes, all_gib_s: of all that fit, also of those not in the rows
WITH
backward AS MATERIALIZED (
    SELECT c.forward_call_id AS call_id, min(c.started_ns) AS first_ns, max(c.ended_ns) AS last_ns
    FROM operator_call AS c
    WHERE $kind IN ('idle', 'late')
        AND c.session_id = $session
        AND c.attempt = $attempt
        AND c.rank = $rank
        AND c.forward_call_id IS NOT NULL
    GROUP BY c.forward_call_id
),
used AS MATERIALIZED (
    SELECT u.*
    FROM allocation_use AS u
    WHERE $kind IN ('early', 'idle', 'late')
        AND u.session_id = $session
        AND u.attempt = $attempt
        AND u.rank = $rank
        AND u.device = $device
),
maker AS MATERIALIZED (
    SELECT c.call_id, c.ended_ns
    FROM operator_call AS c
    WHERE $kind = 'idle' AND c.session_id = $session AND c.attempt = $attempt AND c.rank = $rank
),
step_end AS MATERIALIZED (
    SELECT s.step, max(s.ended_ns) + $offset_ns AS ended_ns
    FROM step AS s
    WHERE s.session_id = $session AND s.attempt = $attempt AND s.rank = $rank
    GROUP BY s.step
),
numbered AS MATERIALIZED (
    SELECT step, ended_ns, row_number() OVER (ORDER BY ended_ns) AS number FROM step_end
),
life AS (
    SELECT
        b.*,
        CASE $kind
            WHEN 'early' THEN b.allocated_ns
            WHEN 'idle' THEN CASE WHEN a.uses IS NULL THEN m.ended_ns ELSE a.idle_from_ns END + $offset_ns
            WHEN 'late' THEN coalesce(a.last_used_ns, u.last_ns) + $offset_ns
            WHEN 'wait' THEN b.free_requested_ns
            WHEN 'outlives' THEN e.ended_ns
        END AS held_from_ns,
        CASE
            WHEN $kind = 'early' THEN a.first_used_ns + $offset_ns
            WHEN $kind <> 'idle' THEN coalesce(b.freed_ns, $end_ns)
            WHEN a.uses IS NOT NULL THEN a.idle_until_ns + $offset_ns
            -- What was freed before the backward was not kept for it.
            WHEN b.freed_ns IS NULL OR b.freed_ns >= u.first_ns + $offset_ns THEN u.first_ns + $offset_ns
        END AS held_until_ns
    FROM block_of_device(
        $session, $attempt::INTEGER, $rank::INTEGER, $device, $offset_ns::BIGINT,
        -- Of these kinds the time ends with the block.
        after_ns := CASE WHEN $kind IN ('late', 'wait', 'outlives') THEN $from_ns::BIGINT END
    ) AS b
    LEFT JOIN backward AS u ON u.call_id = b.call_id
    LEFT JOIN used AS a ON a.allocation_id = b.allocation_id
    LEFT JOIN maker AS m ON m.call_id = b.call_id
    LEFT JOIN step_end AS e ON $kind = 'outlives' AND e.step = b.step
    WHERE NOT b.preexisting
        AND ($kind = 'outlives' OR b.allocated_ns <= $until_ns)
        -- These are made to stay.
        AND ($kind <> 'outlives' OR b.category NOT IN ('parameter', 'optimizer_state', 'kv_cache'))
        AND is_picked($pick::VARCHAR, b)  -- only with $pick
),
held AS (
    SELECT
        l.*,
        l.held_until_ns - l.held_from_ns AS held_ns,
        l.size_bytes::DOUBLE / 1073741824 * (l.held_until_ns - l.held_from_ns) / 1e9 AS wasted_gib_s
    FROM life AS l
    WHERE l.held_until_ns > l.held_from_ns
        AND l.held_until_ns - l.held_from_ns >= $least_ns
        AND l.held_until_ns >= $from_ns
        AND l.held_from_ns <= $until_ns
),
fitting AS (
    SELECT
        h.*,
        coalesce(t.number, 0) - coalesce(f.number, 0) AS held_steps,
        count(*) OVER () AS all_blocks,
        sum(h.size_bytes) OVER ()::BIGINT AS all_bytes,
        sum(h.wasted_gib_s) OVER () AS all_gib_s
    FROM held AS h
    ASOF LEFT JOIN numbered AS t ON h.held_until_ns >= t.ended_ns
    ASOF LEFT JOIN numbered AS f ON h.held_from_ns >= f.ended_ns
    WHERE $kind <> 'outlives' OR coalesce(t.number, 0) - coalesce(f.number, 0) >= $least_steps
)
SELECT
    h.size_bytes,
    h.category,
    h.operator,
    h.module,
    s.line,
    h.phase,
    h.step,
    h.allocated_ns,
    h.freed_ns,
    h.allocation_id,
    h.stack_id::VARCHAR AS stack_id,
    h.held_from_ns,
    h.held_until_ns,
    h.held_ns,
    CASE WHEN $has_steps THEN h.held_steps END AS held_steps,
    h.wasted_gib_s,
    h.all_blocks,
    h.all_bytes,
    h.all_gib_s
FROM fitting AS h
LEFT JOIN stack AS s ON s.stack_id = h.stack_id
CROSS JOIN unstreamed
ORDER BY h.wasted_gib_s DESC, h.allocation_id
LIMIT $at_most;
