-- Question: How much did each group of a device's blocks allocate over the whole session?
-- Parameters:
--   of_session: session id
--   of_group: operator, module, line, category, phase, step, annotation, stream or component
--   of_rank: global rank; NULL, the default, for all
-- Columns:
--   attempt, rank, device: whose
--   group_name: the group; NULL for blocks without one. Of line: of the forward call, for blocks of backward
--   allocated_bytes (bytes): allocated, blocks older than the recording left out. Of category: meant last
--   num_allocations: how many
--   largest_bytes (bytes): the largest block of all
-- Scatter: hosts
CREATE OR REPLACE MACRO made_total(of_session, of_group, of_rank := NULL) AS TABLE
WITH
-- From the rows of allocation_record alone: one pass over three or four of their columns. Numbers become
-- text after the grouping, which is by numbers then.
plain AS (
    SELECT
        attempt,
        rank,
        device,
        CASE WHEN of_group NOT IN ('line', 'step', 'stream') THEN group_of_block(of_group, r) END AS text_key,
        preexisting,
        CASE of_group
            WHEN 'line' THEN coalesce(forward_stack_id, stack_id)
            WHEN 'step' THEN step
            WHEN 'stream' THEN stream
        END AS number_key,
        coalesce(sum(size_bytes) FILTER (WHERE NOT preexisting), 0) AS allocated_bytes,
        count(*) FILTER (WHERE NOT preexisting) AS num_allocations,
        max(size_bytes) AS largest_bytes
    FROM (SELECT *, NULL::VARCHAR AS line FROM allocation_record) AS r
    WHERE session_id = of_session AND of_group <> 'category' AND (of_rank IS NULL OR rank = of_rank)
    GROUP BY attempt, rank, device, text_key, preexisting, number_key
),
-- Categories: what the summaries have, and the blocks that had not ended by then.
place AS MATERIALIZED (
    SELECT attempt, rank, seq AS seq_from
    FROM rank_summarized(of_session)
    WHERE of_group = 'category' AND (of_rank IS NULL OR rank = of_rank) AND NOT is_final
),
ending AS (
    SELECT e.attempt, e.rank, e.device, e.allocation_id, max(e.freed_seq) AS freed_seq
    FROM allocation_end AS e
    INNER JOIN place AS p USING (attempt, rank)
    WHERE e.session_id = of_session AND e.freed_seq <= p.seq_from
    GROUP BY e.attempt, e.rank, e.device, e.allocation_id
),
meaning AS (
    SELECT c.attempt, c.rank, c.device, c.allocation_id, arg_max(c.category, (c.seq, c.time_ns)) AS category
    FROM category_change AS c
    INNER JOIN place AS p USING (attempt, rank)
    WHERE c.session_id = of_session
    GROUP BY c.attempt, c.rank, c.device, c.allocation_id
),
recent AS (
    SELECT
        r.attempt,
        r.rank,
        r.device,
        meaning_of(coalesce(m.category, r.category), r.preexisting) AS category,
        coalesce(sum(r.size_bytes) FILTER (WHERE NOT r.preexisting), 0) AS allocated_bytes,
        count(*) FILTER (WHERE NOT r.preexisting) AS num_allocations,
        max(r.size_bytes) AS largest_bytes
    FROM allocation_record AS r
    INNER JOIN place AS p USING (attempt, rank)
    LEFT JOIN ending AS e USING (attempt, rank, device, allocation_id)
    LEFT JOIN meaning AS m USING (attempt, rank, device, allocation_id)
    WHERE r.session_id = of_session
        AND of_group = 'category'
        AND (r.freed_seq IS NULL OR r.freed_seq > p.seq_from)
        AND e.allocation_id IS NULL
    GROUP BY ALL
),
part AS (
    SELECT
        attempt,
        rank,
        device,
        coalesce(
            CASE WHEN of_group = 'line' THEN s.line ELSE coalesce(text_key, number_key::VARCHAR) END,
            CASE WHEN preexisting THEN 'before the recording' END
        ) AS group_name,
        allocated_bytes,
        num_allocations,
        largest_bytes
    FROM plain
    LEFT JOIN stack AS s ON of_group = 'line' AND s.stack_id = number_key
    UNION ALL
    SELECT t.attempt, t.rank, t.device, t.group_name, t.allocated_bytes, t.num_allocations, t.largest_bytes
    FROM group_total AS t
    INNER JOIN summary_progress AS p USING (session_id, attempt, rank)
    WHERE t.session_id = of_session
        AND t.group_by = of_group
        AND (of_rank IS NULL OR t.rank = of_rank)
        AND t.seq_last <= p.seq
    UNION ALL
    SELECT attempt, rank, device, category, allocated_bytes, num_allocations, largest_bytes FROM recent
)
SELECT
    attempt,
    rank,
    device,
    group_name,
    sum(allocated_bytes)::BIGINT AS allocated_bytes,
    sum(num_allocations)::BIGINT AS num_allocations,
    max(largest_bytes) AS largest_bytes
FROM part
CROSS JOIN unstreamed
GROUP BY attempt, rank, device, group_name
ORDER BY rank, device, attempt, allocated_bytes DESC, group_name;

COMMENT ON MACRO TABLE made_total IS 'Bytes and blocks allocated over a session, by any grouping of blocks.';
