-- Question: How did the bytes of each category change on a device, in the order of its log?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   offset_ns (ns): added to its host's times
--   first, last: positions of the log
-- Columns:
--   seq: the event, or the position at which the category of a block changes
--   time_ns (ns, common clock): when
--   action: 2 a block is allocated, 3 its category changes, 4 its free is requested (completed, where no request is recorded)
--   size_bytes (bytes): of the block
--   category: from then on; of 4 until then
--   category_before: of 3 until then
WITH ending AS (
    SELECT
        allocation_id,
        max(free_requested_seq) AS free_requested_seq,
        max(free_requested_ns) AS free_requested_ns,
        max(freed_seq) AS freed_seq,
        max(freed_ns) AS freed_ns
    FROM allocation_end
    WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device
    GROUP BY allocation_id
),
block AS (
    SELECT
        r.allocation_id,
        r.size_bytes,
        coalesce(r.category, 'unknown') AS first_category,
        greatest(r.allocation_id, -1) AS seq,
        r.allocated_ns,
        coalesce(r.free_requested_seq, e.free_requested_seq, r.freed_seq, e.freed_seq) AS gone_seq,
        coalesce(r.free_requested_ns, e.free_requested_ns, r.freed_ns, e.freed_ns) AS gone_ns
    FROM allocation_record AS r
    LEFT JOIN ending AS e USING (allocation_id)
    WHERE r.session_id = $session
        AND r.attempt = $attempt
        AND r.rank = $rank
        AND r.device = $device
        AND r.allocation_id <= $last
),
turn AS (
    SELECT c.allocation_id, greatest(c.seq, b.seq) AS seq, c.seq AS told_seq, c.time_ns, c.category
    FROM category_change AS c
    INNER JOIN block AS b USING (allocation_id)
    WHERE c.session_id = $session
        AND c.attempt = $attempt
        AND c.rank = $rank
        AND c.device = $device
        AND (b.gone_seq IS NULL OR c.seq < b.gone_seq)
),
-- A category that was learned later and holds since the alloc is the category from the start.
born AS (
    SELECT t.allocation_id, arg_max(t.category, (t.told_seq, t.time_ns)) AS category
    FROM turn AS t
    INNER JOIN block AS b ON b.allocation_id = t.allocation_id AND t.seq = b.seq
    GROUP BY t.allocation_id
),
change AS (
    SELECT
        t.allocation_id,
        t.seq,
        t.time_ns,
        t.category,
        lag(t.category, 1, coalesce(n.category, b.first_category)) OVER life AS category_before,
        lead(t.seq) OVER life IS NULL AS is_last,
        b.size_bytes
    FROM turn AS t
    INNER JOIN block AS b USING (allocation_id)
    LEFT JOIN born AS n USING (allocation_id)
    WHERE t.seq > b.seq
    WINDOW life AS (PARTITION BY t.allocation_id ORDER BY t.told_seq, t.time_ns)
)
-- In FROM, as an aggregator would count a WITH twice (statement_size).
SELECT seq, time_ns + $offset_ns::BIGINT AS time_ns, action, size_bytes, category, category_before
FROM (
    SELECT
        b.seq,
        b.allocated_ns AS time_ns,
        2 AS action,
        b.size_bytes,
        coalesce(n.category, b.first_category) AS category,
        NULL AS category_before
    FROM block AS b
    LEFT JOIN born AS n USING (allocation_id)
    WHERE b.seq >= 0
    UNION ALL
    SELECT seq, time_ns, 3, size_bytes, category, category_before
    FROM change
    WHERE category <> category_before
    UNION ALL
    SELECT
        b.gone_seq,
        b.gone_ns,
        4,
        b.size_bytes,
        coalesce(c.category, n.category, b.first_category),
        NULL
    FROM block AS b
    LEFT JOIN born AS n USING (allocation_id)
    LEFT JOIN (FROM change WHERE is_last) AS c USING (allocation_id)
) AS changes
CROSS JOIN unstreamed
WHERE seq BETWEEN $first AND $last
ORDER BY seq, action;
