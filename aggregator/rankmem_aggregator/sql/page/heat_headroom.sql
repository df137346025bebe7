-- Question: How much could each device of one type still get at the end of each of many equal intervals of time?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...
--   from_ns, until_ns (ns, common clock): the range
--   num_bins: number of intervals
--   unit_ns (ns): times are divided by it before the intervals are counted; 1 unless the range is very long
-- Columns:
--   rank, attempt, device: a device of a rank
--   bin: an interval in which an event or a sample lies, from 0; -1 before the range
--   headroom_bytes (bytes): as in rank_now, by what was known at its end: free on the device, and what the allocator
--     held unused; NULL where neither was known
WITH life AS MATERIALIZED (
    SELECT attempt, rank, offset_ns
    FROM rank_span
    WHERE session_id = $session
),
known AS (
    SELECT
        attempt,
        rank,
        device,
        last_ns AS time_ns,
        seq_last AS seq,
        reserved_last_bytes AS reserved_bytes,
        active_last_bytes AS active_bytes,
        allocated_last_bytes AS allocated_bytes,
        NULL::BIGINT AS app_bytes,
        NULL::BIGINT AS total_bytes,
        NULL::BIGINT AS free_bytes
    FROM memory_bucket
    WHERE session_id = $session AND split_part(device, ':', 1) = $device_type
    UNION ALL
    SELECT
        attempt, rank, device, time_ns, seq, NULL, NULL, NULL, app_reserved_bytes, device_total_bytes, device_free_bytes
    FROM process_sample
    WHERE session_id = $session AND split_part(device, ':', 1) = $device_type
),
binned AS (
    SELECT
        k.* EXCLUDE (time_ns),
        k.time_ns + coalesce(l.offset_ns, 0) AS time_ns,
        CASE
            WHEN k.time_ns + coalesce(l.offset_ns, 0) < $from_ns THEN -1
            ELSE (k.time_ns + coalesce(l.offset_ns, 0) - $from_ns) // $unit_ns * $num_bins
                // (($until_ns - $from_ns) // $unit_ns + 1)
        END::INTEGER AS bin
    FROM known AS k
    LEFT JOIN life AS l USING (attempt, rank)
    WHERE k.time_ns + coalesce(l.offset_ns, 0) <= $until_ns
),
ending AS (
    SELECT
        rank,
        attempt,
        device,
        bin,
        arg_max(reserved_bytes, seq) AS reserved_bytes,
        arg_max(active_bytes, seq) AS active_bytes,
        arg_max(allocated_bytes, seq) AS allocated_bytes,
        arg_max(app_bytes, seq) AS app_bytes,
        arg_max(total_bytes, seq) AS total_bytes,
        arg_max(free_bytes, seq) AS free_bytes
    FROM binned
    GROUP BY rank, attempt, device, bin
),
carried AS (
    SELECT
        rank,
        attempt,
        device,
        bin,
        last_value(reserved_bytes IGNORE NULLS) OVER life AS reserved_bytes,
        last_value(active_bytes IGNORE NULLS) OVER life AS active_bytes,
        last_value(allocated_bytes IGNORE NULLS) OVER life AS allocated_bytes,
        last_value(app_bytes IGNORE NULLS) OVER life AS app_bytes,
        last_value(total_bytes IGNORE NULLS) OVER life AS total_bytes,
        last_value(free_bytes IGNORE NULLS) OVER life AS free_bytes
    FROM ending
    WINDOW life AS (
        PARTITION BY rank, attempt, device ORDER BY bin ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
)
SELECT
    c.rank,
    c.attempt,
    c.device,
    c.bin,
    coalesce(c.free_bytes, coalesce(c.total_bytes, d.total_bytes) - c.app_bytes)
    + greatest(coalesce(c.reserved_bytes - coalesce(c.active_bytes, c.allocated_bytes), 0), 0) AS headroom_bytes
FROM carried AS c
LEFT JOIN device_info AS d
    ON d.session_id = $session AND d.attempt = c.attempt AND d.rank = c.rank AND d.device = c.device
ORDER BY c.rank, c.attempt, c.device, c.bin;
