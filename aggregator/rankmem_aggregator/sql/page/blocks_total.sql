-- Question: How many blocks of a device of a rank fit, and how large are they together, the largest and the smallest?
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
-- Columns:
--   num_blocks: how many
--   bytes (bytes): all together
--   largest_bytes, smallest_bytes (bytes): of one; NULL where none fits
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
)
SELECT
    count(*) AS num_blocks,
    coalesce(sum(b.size_bytes), 0)::BIGINT AS bytes,
    max(b.size_bytes) AS largest_bytes,
    min(b.size_bytes) AS smallest_bytes
FROM life AS b
CROSS JOIN unstreamed
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
ORDER BY num_blocks;
