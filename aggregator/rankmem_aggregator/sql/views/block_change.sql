-- Question: By how much did each group of a rank's blocks grow and shrink, and at which of its events?
-- Parameters:
--   of_session: session id
--   of_group: stream, component, category, phase, operator, module, step or annotation
--   of_rank: global rank; NULL for all
--   of_attempt: which start of the workers; NULL for all
-- Columns:
--   attempt, rank, device: whose
--   group_name: the group; NULL where a block has none. Of category: what the block meant from then on
--   seq: the event; -1 for blocks older than the recording
--   time_ns (ns, common clock): when; NULL for blocks older than the recording
--   change_bytes (bytes): what it added to the group, or took away. Those of one seq belong together
CREATE OR REPLACE MACRO block_change(of_session, of_group, of_rank := NULL, of_attempt := NULL) AS TABLE
WITH block AS (
    SELECT
        attempt,
        rank,
        device,
        allocation_id,
        size_bytes,
        greatest(allocation_id, -1) AS seq,
        allocated_ns AS time_ns,
        freed_seq,
        freed_ns,
        group_of(
            of_group, operator, module, NULL, first_category, phase, step, annotation, stream, component
        ) AS group_name
    FROM allocation_life
    WHERE session_id = of_session
        AND (of_rank IS NULL OR rank = of_rank)
        AND (of_attempt IS NULL OR attempt = of_attempt)
),
-- What a block came to mean while it lived; nothing at all for the other groupings.
turn AS (
    SELECT
        c.attempt,
        c.rank,
        c.device,
        c.allocation_id,
        greatest(c.seq, b.seq) AS seq,
        c.time_ns + coalesce(s.offset_ns, 0) AS time_ns,
        b.size_bytes,
        c.category,
        lag(c.category, 1, b.group_name) OVER life AS category_before,
        lead(c.seq) OVER life IS NULL AS is_last
    FROM category_change AS c
    INNER JOIN block AS b USING (attempt, rank, device, allocation_id)
    LEFT JOIN rank_span AS s ON c.session_id = s.session_id AND c.attempt = s.attempt AND c.rank = s.rank
    WHERE of_group = 'category'
        AND c.session_id = of_session
        AND (b.freed_seq IS NULL OR c.seq < b.freed_seq)
    WINDOW life AS (
        PARTITION BY c.attempt, c.rank, c.device, c.allocation_id ORDER BY c.seq, c.time_ns
    )
)
SELECT attempt, rank, device, group_name, seq, time_ns, size_bytes AS change_bytes FROM block
UNION ALL
SELECT b.attempt, b.rank, b.device, coalesce(t.category, b.group_name), b.freed_seq, b.freed_ns, -b.size_bytes
FROM block AS b
LEFT JOIN (FROM turn WHERE is_last) AS t USING (attempt, rank, device, allocation_id)
WHERE b.freed_seq IS NOT NULL
UNION ALL
SELECT attempt, rank, device, category_before, seq, time_ns, -size_bytes FROM turn
UNION ALL
SELECT attempt, rank, device, category, seq, time_ns, size_bytes FROM turn;

COMMENT ON MACRO TABLE block_change IS 'What each event added to or took from a group of blocks: the ground of curves and peaks by group.';
