-- Question: By how much did each group of a rank's blocks grow and shrink, and at which of its events?
-- Parameters:
--   of_session: session id
--   of_group: stream, component, category, phase, operator, module, line, step or annotation
--   of_rank: global rank; NULL for all
--   of_attempt: which start of the workers; NULL for all
--   only_recent: true to leave out what group_bucket has; the default is false. For its four groupings alone
-- Columns:
--   attempt, rank, device: whose
--   group_name: the group; NULL where a block has none, or before the recording if it is older. Of category: what the block meant from then on
--   seq: the event; -1 for blocks older than the recording
--   time_ns (ns, common clock): when; NULL for blocks older than the recording
--   change_bytes (bytes): what it added to the group, or took away. Those of one seq belong together
-- Scatter: hosts
CREATE OR REPLACE MACRO block_change(
    of_session, of_group, of_rank := NULL, of_attempt := NULL, only_recent := false
) AS TABLE
WITH
-- The ranks that contribute, and after which position of their log. A list: DuckDB takes one row to be few; where it
-- did not know, all blocks went into a hash table, also where no rank contributes.
place AS MATERIALIZED (
    SELECT unnest(places, recursive := true)
    FROM (
        SELECT list({
            attempt: r.attempt,
            rank: r.rank,
            offset_ns: coalesce(s.offset_ns, 0),
            seq_from: CASE WHEN is_recent THEN r.seq ELSE -4611686018427387904 END
        }) AS places
        FROM (
            SELECT *, only_recent AND of_group IN ('stream', 'component', 'phase', 'category') AS is_recent
            FROM rank_summarized(of_session)
        ) AS r
        LEFT JOIN rank_span AS s ON s.session_id = of_session AND s.attempt = r.attempt AND s.rank = r.rank
        WHERE (of_rank IS NULL OR r.rank = of_rank)
            AND (of_attempt IS NULL OR r.attempt = of_attempt)
            AND NOT (is_recent AND is_final)
    )
),
ending AS (
    SELECT e.attempt, e.rank, e.device, e.allocation_id, max(e.freed_seq) AS freed_seq, max(e.freed_ns) AS freed_ns
    FROM allocation_end AS e
    INNER JOIN place AS p USING (attempt, rank)
    WHERE e.session_id = of_session
    GROUP BY e.attempt, e.rank, e.device, e.allocation_id
),
block AS (
    SELECT
        r.attempt,
        r.rank,
        r.device,
        r.allocation_id,
        p.seq_from,
        p.offset_ns,
        r.size_bytes,
        greatest(r.allocation_id, -1) AS seq,
        r.allocated_ns + p.offset_ns AS time_ns,
        coalesce(r.freed_seq, e.freed_seq) AS freed_seq,
        coalesce(r.freed_ns, e.freed_ns) + p.offset_ns AS freed_ns,
        group_of_block(of_group, r) AS group_name,
        r.preexisting
    FROM (
        SELECT a.* REPLACE (coalesce(a.category, 'unknown') AS category), s.line
        FROM allocation_record AS a
        LEFT JOIN stack AS s ON of_group = 'line' AND s.stack_id = coalesce(a.forward_stack_id, a.stack_id)
        WHERE a.session_id = of_session
    ) AS r
    INNER JOIN place AS p USING (attempt, rank)
    LEFT JOIN ending AS e USING (attempt, rank, device, allocation_id)
    WHERE (
        r.allocation_id > p.seq_from
        OR coalesce(r.freed_seq, e.freed_seq) > p.seq_from
        OR coalesce(r.freed_seq, e.freed_seq) IS NULL
    )
),
-- What a block came to mean while it lived; nothing at all for the other groupings.
turn AS (
    SELECT
        c.attempt,
        c.rank,
        c.device,
        c.allocation_id,
        b.seq_from,
        greatest(c.seq, b.seq) AS seq,
        c.time_ns + b.offset_ns AS time_ns,
        b.size_bytes,
        meaning_of(c.category, b.preexisting) AS category,
        lag(meaning_of(c.category, b.preexisting), 1, b.group_name) OVER life AS category_before,
        lead(c.seq) OVER life IS NULL AS is_last
    FROM category_change AS c
    INNER JOIN block AS b USING (attempt, rank, device, allocation_id)
    WHERE of_group = 'category'
        AND c.session_id = of_session
        AND (b.freed_seq IS NULL OR c.seq < b.freed_seq)
    WINDOW life AS (
        PARTITION BY c.attempt, c.rank, c.device, c.allocation_id ORDER BY c.seq, c.time_ns
    )
)
SELECT attempt, rank, device, group_name, seq, time_ns, size_bytes AS change_bytes
FROM block
CROSS JOIN unstreamed
WHERE allocation_id > seq_from
UNION ALL
SELECT b.attempt, b.rank, b.device, coalesce(t.category, b.group_name), b.freed_seq, b.freed_ns, -b.size_bytes
FROM block AS b
LEFT JOIN (FROM turn WHERE is_last) AS t USING (attempt, rank, device, allocation_id)
WHERE b.freed_seq > b.seq_from
UNION ALL
SELECT attempt, rank, device, category_before, seq, time_ns, -size_bytes FROM turn WHERE seq > seq_from
UNION ALL
SELECT attempt, rank, device, category, seq, time_ns, size_bytes FROM turn WHERE seq > seq_from;

COMMENT ON MACRO TABLE block_change IS 'What each event added to or took from a group of blocks: the basis of curves and peaks by group.';
