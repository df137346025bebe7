-- Question: Which blocks of a device of a rank were alive in a range of its log?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   offset_ns (ns): added to its host's times
--   first, last: lowest and highest allocation id
--   seq_first, seq_last: the range; what came after it is left out
--   least_bytes (bytes): smaller ones are left out
-- Columns:
--   allocation_id, address, size_bytes, stream, pool, component, operator, module, phase, step, annotation, call_id,
--     stack_id, forward_call_id, forward_stack_id, preexisting, attribution, like_id: as in the view allocation
--   first_category: the category when its record was sent
--   category: the last one within the range
--   allocated_ns, free_requested_ns, freed_ns (ns, common clock): NULL for what came after
--   free_requested_seq, freed_seq: those events
WITH ending AS (
    SELECT
        allocation_id,
        max(free_requested_ns) AS free_requested_ns,
        max(free_requested_seq) AS free_requested_seq,
        max(freed_ns) AS freed_ns,
        max(freed_seq) AS freed_seq
    FROM allocation_end
    WHERE session_id = $session
        AND attempt = $attempt
        AND rank = $rank
        AND device = $device
        AND allocation_id BETWEEN $first AND $last
    GROUP BY allocation_id
),
meaning AS (
    SELECT allocation_id, arg_max(category, (seq, time_ns)) AS category
    FROM category_change
    WHERE session_id = $session
        AND attempt = $attempt
        AND rank = $rank
        AND device = $device
        AND allocation_id BETWEEN $first AND $last
        AND seq <= $seq_last
    GROUP BY allocation_id
),
life AS (
    SELECT
        r.*,
        coalesce(r.free_requested_seq, e.free_requested_seq) AS requested_seq,
        coalesce(r.free_requested_ns, e.free_requested_ns) AS requested_ns,
        coalesce(r.freed_seq, e.freed_seq) AS ended_seq,
        coalesce(r.freed_ns, e.freed_ns) AS ended_ns,
        t.category AS later_category
    FROM allocation_record AS r
    LEFT JOIN ending AS e USING (allocation_id)
    LEFT JOIN meaning AS t USING (allocation_id)
    WHERE r.session_id = $session
        AND r.attempt = $attempt
        AND r.rank = $rank
        AND r.device = $device
        AND r.allocation_id BETWEEN $first AND $last
        AND r.size_bytes >= $least_bytes
)
SELECT
    allocation_id,
    address,
    size_bytes,
    stream,
    pool,
    component,
    operator,
    module,
    phase,
    step,
    annotation,
    call_id,
    stack_id,
    forward_call_id,
    forward_stack_id,
    preexisting,
    attribution,
    like_id,
    coalesce(category, 'unknown') AS first_category,
    coalesce(later_category, category, 'unknown') AS category,
    allocated_ns + $offset_ns::BIGINT AS allocated_ns,
    CASE WHEN requested_seq <= $seq_last THEN requested_ns + $offset_ns::BIGINT END AS free_requested_ns,
    CASE WHEN requested_seq <= $seq_last THEN requested_seq END AS free_requested_seq,
    CASE WHEN ended_seq <= $seq_last THEN ended_ns + $offset_ns::BIGINT END AS freed_ns,
    CASE WHEN ended_seq <= $seq_last THEN ended_seq END AS freed_seq
FROM life
WHERE ended_seq IS NULL OR ended_seq >= $seq_first
ORDER BY allocation_id;
