-- Question: Which bytes did a device of a rank hold within a part of its log, from which event to which, and in which group?
-- Parameters:
--   session (text): session id
--   attempt, rank, device: which device
--   by (text): category, phase, module, operator, step, annotation, stream, component; line gives the stack's id
--   first_seq, last_seq: the part of the log
--   pick (JSON text): groups that are picked, as in is_picked, but for categories; NULL for all
--   categories (JSON text): categories that are picked, as in is_picked; NULL for all. A block counts while it means one of them
-- Columns:
--   group_name: the group as text; NULL where a block has none, or before the recording if it is older
--   begin_seq: the event from which the bytes count; -1 for blocks older than the recording
--   end_seq: the event from which they no longer do; NULL while they last
--   size_bytes (bytes): requested size of a block. Where it comes to mean something else, and that matters, also what is moved: its
--     bytes are added to what it means from then on, and taken (negative) from what it meant before
WITH ending AS (
    SELECT allocation_id, max(freed_seq) AS freed_seq
    FROM allocation_end
    WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device
    GROUP BY allocation_id
),
block AS (
    SELECT
        r.allocation_id,
        group_of_block($by, r) AS group_name,
        meaning_of(r.category, r.preexisting) AS category,
        r.preexisting,
        greatest(r.allocation_id, -1) AS begin_seq,
        coalesce(r.freed_seq, e.freed_seq) AS end_seq,
        r.size_bytes
    FROM (
        SELECT
            a.* REPLACE (coalesce(a.category, 'unknown') AS category),
            coalesce(a.forward_stack_id, a.stack_id)::VARCHAR AS line
        FROM allocation_record AS a
        WHERE a.session_id = $session
            AND a.attempt = $attempt
            AND a.rank = $rank
            AND a.device = $device
            AND a.allocation_id <= $last_seq
    ) AS r
    LEFT JOIN ending AS e USING (allocation_id)
    WHERE (r.freed_seq IS NULL OR r.freed_seq > $first_seq)
        AND (e.freed_seq IS NULL OR e.freed_seq > $first_seq)
        AND is_picked($pick::VARCHAR, r)  -- only with $pick
),
-- What a block came to mean while it lived, where categories are grouped or picked.
turn AS MATERIALIZED (
    SELECT
        greatest(c.seq, b.begin_seq) AS begin_seq,
        b.end_seq,
        meaning_of(c.category, b.preexisting) AS category,
        lag(meaning_of(c.category, b.preexisting), 1, b.category) OVER life AS category_before,
        b.group_name,
        b.size_bytes
    FROM category_change AS c
    INNER JOIN block AS b USING (allocation_id)
    WHERE ($by = 'category' OR $categories::VARCHAR IS NOT NULL)
        AND c.session_id = $session
        AND c.attempt = $attempt
        AND c.rank = $rank
        AND c.device = $device
        AND (b.end_seq IS NULL OR c.seq < b.end_seq)
    WINDOW life AS (PARTITION BY c.allocation_id ORDER BY c.seq, c.time_ns)
)
SELECT group_name, begin_seq, end_seq, size_bytes
FROM block
WHERE $categories::VARCHAR IS NULL OR is_among($categories::VARCHAR, '$.category[*]', category)  -- only with $categories
UNION ALL
SELECT if($by = 'category', category, group_name), begin_seq, end_seq, size_bytes
FROM turn
WHERE $categories::VARCHAR IS NULL OR is_among($categories::VARCHAR, '$.category[*]', category)  -- only with $categories
UNION ALL
SELECT if($by = 'category', category_before, group_name), begin_seq, end_seq, -size_bytes
FROM turn
CROSS JOIN unstreamed
WHERE $categories::VARCHAR IS NULL OR is_among($categories::VARCHAR, '$.category[*]', category_before)  -- only with $categories
-- In no order: of a million rows that would cost as much as reading them, and they are only added up.
;
