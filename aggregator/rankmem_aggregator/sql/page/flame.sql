-- Question: What did the blocks of some devices hold, by the stack, module or operator that made them?
-- Parameters:
--   session (text): session id
--   points (JSON text): the devices, a list of {attempt, rank, device, offset_ns, seq}: offset_ns (ns) added to its
--     host's times gives the common clock; seq is the event after which blocks are alive, null for a range
--   rank_first, rank_last (count): the lowest and the highest of their ranks
--   which (text): alive, made, freed, touching, kept, as in blocks
--   from_ns, until_ns (ns, common clock): the range, both ends included
--   by (text): line, module or operator
--   with_category: true to take blocks apart by category, too
--   with_size: true to take blocks apart by size and operator, too
--   pick (JSON text): groups that are picked, as in is_picked; NULL for all
-- Columns:
--   stack_id (text): by line the stack, of a block of backward that of its forward call; NULL without one
--   frames: its frames as "file:line function", the one nearest to the operator first; NULL with_size
--   group_name: by module or operator the block's own, with_size the operator; NULL without one
--   preexisting: true for blocks older than the recording
--   category: what the bytes meant after the event, or at the end of the range; NULL where it is not asked for
--   size_bytes (bytes): of each of them; NULL where it is not asked for
--   bytes (bytes): together
--   blocks: how many
WITH
point AS MATERIALIZED (
    SELECT p.attempt, p.rank, p.device, p.offset_ns, p.seq AS point_seq
    FROM (
        SELECT unnest($points::VARCHAR::JSON::STRUCT(
            attempt INTEGER, rank INTEGER, device VARCHAR, offset_ns BIGINT, seq BIGINT
        )[]) AS p
    )
),
-- A free may come in two rows: requested in one batch, completed in a later one.
ending AS MATERIALIZED (
    SELECT attempt, rank, device, allocation_id, max(e.freed_ns) AS freed_ns, max(e.freed_seq) AS freed_seq
    FROM allocation_end AS e
    INNER JOIN point USING (attempt, rank, device)
    WHERE e.session_id = $session AND e.rank BETWEEN $rank_first AND $rank_last
    GROUP BY attempt, rank, device, allocation_id
),
meaning AS MATERIALIZED (
    SELECT attempt, rank, device, allocation_id, arg_max(c.category, (c.seq, c.time_ns)) AS category
    FROM category_change AS c
    INNER JOIN point AS p USING (attempt, rank, device)
    WHERE c.session_id = $session
        AND c.rank BETWEEN $rank_first AND $rank_last
        AND ($which <> 'alive' OR c.seq <= p.point_seq)
        AND ($which = 'alive' OR c.time_ns + p.offset_ns <= $until_ns)
    GROUP BY attempt, rank, device, allocation_id
),
life AS (
    SELECT
        r.* EXCLUDE (allocated_ns, freed_ns, freed_seq, category),
        r.allocated_ns + p.offset_ns AS allocated_ns,
        coalesce(r.freed_ns, e.freed_ns) + p.offset_ns AS freed_ns,
        coalesce(r.freed_seq, e.freed_seq) AS freed_seq,
        meaning_of(coalesce(m.category, r.category), r.preexisting) AS category,
        p.point_seq
    FROM allocation_record AS r
    INNER JOIN point AS p USING (attempt, rank, device)
    LEFT JOIN ending AS e USING (attempt, rank, device, allocation_id)
    LEFT JOIN meaning AS m USING (attempt, rank, device, allocation_id)
    WHERE r.session_id = $session AND r.rank BETWEEN $rank_first AND $rank_last
),
held AS MATERIALIZED (
    SELECT
        CASE WHEN $by = 'line' THEN coalesce(b.forward_stack_id, b.stack_id) END AS stack_id,
        CASE WHEN $by = 'module' THEN b.module WHEN $by = 'operator' OR $with_size THEN b.operator END AS group_name,
        b.preexisting,
        CASE WHEN $with_category THEN b.category END AS category,
        CASE WHEN $with_size THEN b.size_bytes END AS size_bytes,
        sum(b.size_bytes)::BIGINT AS bytes,
        count(*) AS blocks
    FROM life AS b
    WHERE
        CASE $which
            WHEN 'alive' THEN b.allocation_id <= b.point_seq AND (b.freed_seq IS NULL OR b.freed_seq > b.point_seq)
            WHEN 'made' THEN NOT b.preexisting AND b.allocated_ns BETWEEN $from_ns AND $until_ns
            WHEN 'freed' THEN b.freed_ns BETWEEN $from_ns AND $until_ns
            WHEN 'touching' THEN
                coalesce(b.allocated_ns <= $until_ns, b.preexisting) AND (b.freed_ns IS NULL OR b.freed_ns >= $from_ns)
            WHEN 'kept' THEN NOT b.preexisting AND b.allocated_ns BETWEEN $from_ns AND $until_ns
                AND (b.freed_ns IS NULL OR b.freed_ns > $until_ns)
        END
        AND is_picked($pick::VARCHAR, b)  -- only with $pick
    GROUP BY ALL
),
frame AS MATERIALIZED (
    SELECT
        f.stack_id,
        list(
            CASE WHEN f.line_number = 0 THEN f.function ELSE f.file_path || ':' || f.line_number || ' ' || f.function END
            ORDER BY f.ordering
        ) AS frames
    FROM stack_frame AS f
    WHERE f.stack_id IN (SELECT h.stack_id FROM held AS h WHERE NOT $with_size)
    GROUP BY f.stack_id
)
SELECT
    h.stack_id::VARCHAR AS stack_id,
    f.frames,
    h.group_name,
    h.preexisting,
    h.category,
    h.size_bytes,
    h.bytes,
    h.blocks
FROM held AS h
LEFT JOIN frame AS f USING (stack_id)
CROSS JOIN unstreamed
ORDER BY h.bytes DESC, stack_id, h.group_name, h.category, h.size_bytes, h.preexisting;
