-- Question: Which blocks were alive where the range of this pass begins, and what did they mean there?
-- Columns:
--   those of made.sql
-- Only asked by an aggregator that was restarted: it has them from the pass before.
WITH meaning AS (
    SELECT d.number, c.device, c.allocation_id, arg_max(c.category, (c.seq, c.time_ns)) AS category
    FROM category_change AS c
    INNER JOIN summary_due AS d USING (session_id, attempt, rank)
    WHERE c.seq <= d.seq_from
    GROUP BY d.number, c.device, c.allocation_id
),
ending AS (
    SELECT d.number, e.device, e.allocation_id, max(e.freed_seq) AS freed_seq, max(e.freed_ns) AS freed_ns
    FROM allocation_end AS e
    INNER JOIN summary_due AS d USING (session_id, attempt, rank)
    GROUP BY d.number, e.device, e.allocation_id
)
SELECT
    d.number,
    r.device,
    r.allocation_id,
    r.size_bytes,
    coalesce(r.stream::VARCHAR, CASE WHEN r.preexisting THEN 'before the recording' END) AS stream,
    r.component,
    coalesce(r.phase, CASE WHEN r.preexisting THEN 'before the recording' END) AS phase,
    meaning_of(coalesce(m.category, r.category), r.preexisting) AS category,
    r.allocated_ns,
    r.preexisting,
    coalesce(r.freed_seq, e.freed_seq) AS freed_seq,
    coalesce(r.freed_ns, e.freed_ns) AS freed_ns
FROM allocation_record AS r
INNER JOIN summary_due AS d USING (session_id, attempt, rank)
LEFT JOIN ending AS e USING (number, device, allocation_id)
LEFT JOIN meaning AS m USING (number, device, allocation_id)
WHERE r.allocation_id <= d.seq_from AND (coalesce(r.freed_seq, e.freed_seq) > d.seq_from OR coalesce(r.freed_seq, e.freed_seq) IS NULL)
ORDER BY d.number, r.allocation_id;
