-- Question: How many bytes did each block hold on a device before an event, and of which category?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   before: the event
-- Columns:
--   size_bytes (bytes): of a block that was alive and whose free was not requested
--   category: at that event
WITH ending AS (
    SELECT allocation_id, min(coalesce(free_requested_seq, freed_seq)) AS gone_seq
    FROM allocation_end
    WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device
    GROUP BY allocation_id
),
meaning AS (
    SELECT c.allocation_id, arg_max(c.category, (c.seq, c.time_ns)) AS category
    FROM category_change AS c
    WHERE c.session_id = $session
        AND c.attempt = $attempt
        AND c.rank = $rank
        AND c.device = $device
        AND (c.seq < $before OR c.seq <= c.allocation_id OR c.allocation_id < 0 AND c.seq <= 0)
    GROUP BY c.allocation_id
)
SELECT r.size_bytes, coalesce(m.category, r.category, 'unknown') AS category
FROM allocation_record AS r
LEFT JOIN ending AS e USING (allocation_id)
LEFT JOIN meaning AS m USING (allocation_id)
WHERE r.session_id = $session
    AND r.attempt = $attempt
    AND r.rank = $rank
    AND r.device = $device
    AND r.allocation_id < $before
    AND (
        coalesce(r.free_requested_seq, e.gone_seq, r.freed_seq) IS NULL
        OR coalesce(r.free_requested_seq, e.gone_seq, r.freed_seq) >= $before
    )
ORDER BY r.allocation_id;
