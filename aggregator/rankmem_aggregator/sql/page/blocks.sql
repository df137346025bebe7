-- Question: Which blocks of a device of a rank fit, page by page in any order?
-- Parameters:
--   session, attempt, rank, device: which device
--   offset_ns (ns): add to its host's times for the common clock
--   which (text): alive: after the event seq; made, freed: within the range; touching: alive at any time of it; kept: made
--     in it and not freed by its end
--   seq (position): the event, for alive; else NULL
--   from_ns, until_ns (ns, common clock): the range, both ends included
--   at_ns (ns, common clock): the instant of ages: that of the event, or the end of the range
--   size_min, size_max (bytes), age_min, age_max (ns), made_from_ns, made_until_ns, freed_from_ns, freed_until_ns (ns, common
--     clock): bounds, both included; NULL for none; a block without the figure is outside of every bound
--   word_1 to word_4 (text): each must be part of the operator, module, line, forward line or category, in lower case;
--     NULL for none
--   pick (JSON text): groups that are picked, as in is_picked; NULL for all
--   by_line: true where lines are needed to sort or to filter
--   sort (text): by which column: size, category, operator, module, line, forward_line, phase, step, stream, pool,
--     component, annotation, address, allocated, freed, free_requested, age, life, id, stack, preexisting, recomputed
--   descending: the largest or last first; blocks without the figure are the last in any case, equals go by their id
--   after_id (position): id of the last block of the page before, NULL for the first page
--   after_number, after_text: its value of the sorting column, NULL where it has none
--   at_most (count): rows of a page
-- Columns:
--   size_bytes (bytes): requested size
--   category: what the bytes meant after the event, or at the end of the range
--   operator, module, phase, step, stream, pool, component, annotation: as in the view allocation
--   line, forward_line: the line of the project that made it; of a block of backward also that of its forward call
--   address (text): on its device, hexadecimal
--   allocated_ns, freed_ns, free_requested_ns (ns, common clock): when; NULL where it is not known or did not happen
--   age_ns (ns): from its alloc to the instant, or to its end where that was before; NULL for older blocks
--   life_ns (ns): from its alloc to its end; NULL while it lives
--   allocation_id: seq of its alloc event; negative for blocks older than the recording
--   stack_id, forward_stack_id (text): Python stacks
--   preexisting: true for a block older than the recording
--   recomputed: true if made while a checkpoint computed forward again
--   attribution: by what operator, module, phase and stacks are known; likewise like_id: as in the view allocation
--   number_key, text_key: its value of the sorting column
WITH
line AS MATERIALIZED (
    SELECT stack_id, line FROM stack
),
life AS (
    SELECT
        b.*,
        s.line,
        f.line AS forward_line,
        CASE WHEN NOT b.preexisting THEN least(b.freed_ns, $at_ns) - b.allocated_ns END AS age_ns
    FROM block_of_device(
        $session, $attempt::INTEGER, $rank::INTEGER, $device, $offset_ns::BIGINT,
        until_seq := $seq::BIGINT, until_ns := CASE WHEN $which <> 'alive' THEN $until_ns END,
        after_seq := CASE WHEN $which = 'alive' THEN $seq::BIGINT END
    ) AS b
    LEFT JOIN line AS s ON $by_line AND s.stack_id = b.stack_id
    LEFT JOIN line AS f ON $by_line AND f.stack_id = b.forward_stack_id
),
-- Of the blocks that fit only what sorts and filters them, and what is not in their own rows: most of them are on no page.
page AS MATERIALIZED (
    SELECT
        b.allocation_id,
        b.category,
        b.allocated_ns,
        b.freed_ns,
        b.free_requested_ns,
        b.age_ns,
        b.duration_ns,
        CASE $sort
            WHEN 'size' THEN b.size_bytes
            WHEN 'step' THEN b.step
            WHEN 'stream' THEN b.stream
            WHEN 'address' THEN b.address
            WHEN 'allocated' THEN CASE WHEN NOT b.preexisting THEN b.allocated_ns END
            WHEN 'freed' THEN b.freed_ns
            WHEN 'free_requested' THEN b.free_requested_ns
            WHEN 'age' THEN b.age_ns
            WHEN 'life' THEN CASE WHEN NOT b.preexisting THEN b.duration_ns END
            WHEN 'id' THEN b.allocation_id
            WHEN 'stack' THEN b.stack_id
            WHEN 'preexisting' THEN b.preexisting::BIGINT
            WHEN 'recomputed' THEN b.recomputed::BIGINT
        END AS number_key,
        CASE $sort
            WHEN 'category' THEN b.category
            WHEN 'operator' THEN b.operator
            WHEN 'module' THEN b.module
            WHEN 'line' THEN b.line
            WHEN 'forward_line' THEN b.forward_line
            WHEN 'phase' THEN b.phase
            WHEN 'component' THEN b.component
            WHEN 'annotation' THEN b.annotation
            WHEN 'pool' THEN b.pool
        END AS text_key
    FROM life AS b
    WHERE
        CASE $which
            WHEN 'alive' THEN b.allocation_id <= $seq AND (b.freed_seq IS NULL OR b.freed_seq > $seq)
            WHEN 'made' THEN NOT b.preexisting AND b.allocated_ns BETWEEN $from_ns AND $until_ns
            WHEN 'freed' THEN b.freed_ns BETWEEN $from_ns AND $until_ns
            WHEN 'touching' THEN coalesce(b.allocated_ns <= $until_ns, b.preexisting) AND (b.freed_ns IS NULL OR b.freed_ns >= $from_ns)
            WHEN 'kept' THEN NOT b.preexisting AND b.allocated_ns BETWEEN $from_ns AND $until_ns
                AND (b.freed_ns IS NULL OR b.freed_ns > $until_ns)
        END
        AND ($size_min::BIGINT IS NULL OR b.size_bytes >= $size_min)
        AND ($size_max::BIGINT IS NULL OR b.size_bytes <= $size_max)
        AND ($age_min::BIGINT IS NULL OR b.age_ns >= $age_min)
        AND ($age_max::BIGINT IS NULL OR b.age_ns <= $age_max)
        AND ($made_from_ns::BIGINT IS NULL OR (b.allocated_ns >= $made_from_ns AND NOT b.preexisting))
        AND ($made_until_ns::BIGINT IS NULL OR (b.allocated_ns <= $made_until_ns AND NOT b.preexisting))
        AND ($freed_from_ns::BIGINT IS NULL OR b.freed_ns >= $freed_from_ns)
        AND ($freed_until_ns::BIGINT IS NULL OR b.freed_ns <= $freed_until_ns)
        AND has_word($word_1::VARCHAR, b.operator, b.module, b.category, b.line, b.forward_line)  -- only with $word_1
        AND has_word($word_2::VARCHAR, b.operator, b.module, b.category, b.line, b.forward_line)  -- only with $word_1
        AND has_word($word_3::VARCHAR, b.operator, b.module, b.category, b.line, b.forward_line)  -- only with $word_1
        AND has_word($word_4::VARCHAR, b.operator, b.module, b.category, b.line, b.forward_line)  -- only with $word_1
        AND is_picked($pick::VARCHAR, b)  -- only with $pick
        AND (
            $after_id::BIGINT IS NULL
            OR CASE
                WHEN coalesce($after_number::BIGINT::VARCHAR, $after_text::VARCHAR) IS NULL
                    THEN number_key IS NULL AND text_key IS NULL AND b.allocation_id > $after_id
                WHEN $after_number::BIGINT IS NOT NULL
                    THEN number_key IS NULL
                    OR CASE WHEN $descending THEN number_key < $after_number ELSE number_key > $after_number END
                    OR (number_key = $after_number AND b.allocation_id > $after_id)
                ELSE
                    text_key IS NULL
                    OR CASE WHEN $descending THEN text_key < $after_text ELSE text_key > $after_text END
                    OR (text_key = $after_text AND b.allocation_id > $after_id)
            END
        )
    ORDER BY
        CASE WHEN $descending THEN -number_key ELSE number_key END NULLS LAST,
        CASE WHEN $descending THEN text_key END DESC NULLS LAST,
        CASE WHEN NOT $descending THEN text_key END NULLS LAST,
        b.allocation_id
    LIMIT $at_most
)
SELECT
    r.size_bytes,
    p.category,
    coalesce(r.operator, CASE WHEN r.preexisting THEN 'before the recording' END) AS operator,
    r.module,
    s.line,
    f.line AS forward_line,
    r.phase,
    r.step,
    r.stream::VARCHAR AS stream,
    r.pool,
    r.component,
    r.annotation,
    '0x' || lower(hex(r.address)) AS address,
    CASE WHEN NOT r.preexisting THEN p.allocated_ns END AS allocated_ns,
    p.freed_ns,
    p.free_requested_ns,
    p.age_ns,
    CASE WHEN NOT r.preexisting THEN p.duration_ns END AS life_ns,
    p.allocation_id,
    r.stack_id::VARCHAR AS stack_id,
    r.forward_stack_id::VARCHAR AS forward_stack_id,
    r.preexisting,
    r.recomputed,
    r.attribution,
    r.like_id,
    p.number_key,
    p.text_key
FROM page AS p
INNER JOIN allocation_record AS r
    ON r.session_id = $session
    AND r.attempt = $attempt
    AND r.rank = $rank
    AND r.device = $device
    AND r.allocation_id = p.allocation_id
LEFT JOIN line AS s ON s.stack_id = r.stack_id
LEFT JOIN line AS f ON f.stack_id = r.forward_stack_id
CROSS JOIN unstreamed
ORDER BY
    CASE WHEN $descending THEN -number_key ELSE number_key END NULLS LAST,
    CASE WHEN $descending THEN text_key END DESC NULLS LAST,
    CASE WHEN NOT $descending THEN text_key END NULLS LAST,
    p.allocation_id;
