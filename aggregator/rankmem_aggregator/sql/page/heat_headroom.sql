-- Question: How much could each device of one type still get at the end of each of many equal intervals of time?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...
--   from_ns, until_ns (ns, common clock): the range
--   num_bins: number of intervals
--   unit_ns (ns): times are divided by it before the intervals are counted; 1 unless the range is very long
--   width_s (s): the widest part of the log that is taken as a whole; below 4 a row of memory_bucket
--   history_s (s): the same for what was before the range
--   has_offsets: false where the clocks of all hosts are the common one: then it is not looked up
--   host_from_ns, host_until_ns (ns): the range, as the earliest and the latest of the hosts' clocks has it
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
-- In the range and shortly before it no part of a log is wider than an interval; of what is long over the last is enough.
part AS (
    SELECT *
    FROM memory_cell($session, $width_s)
    WHERE cell_ns BETWEEN $host_from_ns - $history_s::BIGINT * 2000000000 AND $host_until_ns
    UNION ALL
    SELECT c.*
    FROM memory_cell($session, $history_s) AS c
    CROSS JOIN unstreamed
    -- What begins after the range is left out below; with the first condition alone every row of memory_bucket is read.
    WHERE last_ns < $host_from_ns OR first_ns > $host_until_ns
),
allocator AS (
    SELECT
        p.rank,
        p.attempt,
        p.device,
        interval_of(p.last_ns + coalesce(l.offset_ns, 0), $from_ns, $until_ns, $num_bins, $unit_ns) AS bin,
        arg_max(p.reserved_last_bytes, p.seq_last) AS reserved_bytes,
        arg_max(p.active_last_bytes, p.seq_last) AS active_bytes,
        arg_max(p.allocated_last_bytes, p.seq_last) AS allocated_bytes
    FROM part AS p
    -- Nothing is known of a device without samples.
    SEMI JOIN (FROM process_sample WHERE session_id = $session) AS s USING (attempt, rank, device)
    LEFT JOIN life AS l ON $has_offsets AND l.attempt = p.attempt AND l.rank = p.rank
    WHERE split_part(p.device, ':', 1) = $device_type AND p.last_ns + coalesce(l.offset_ns, 0) <= $until_ns
    GROUP BY p.rank, p.attempt, p.device, bin
),
process AS (
    SELECT
        p.rank,
        p.attempt,
        p.device,
        interval_of(p.time_ns + coalesce(l.offset_ns, 0), $from_ns, $until_ns, $num_bins, $unit_ns) AS bin,
        arg_max(p.app_reserved_bytes, p.seq) AS app_bytes,
        arg_max(p.device_total_bytes, p.seq) AS total_bytes,
        arg_max(p.device_free_bytes, p.seq) AS free_bytes
    FROM process_sample AS p
    LEFT JOIN life AS l ON $has_offsets AND l.attempt = p.attempt AND l.rank = p.rank
    WHERE p.session_id = $session
        AND split_part(p.device, ':', 1) = $device_type
        AND p.time_ns + coalesce(l.offset_ns, 0) <= $until_ns
    GROUP BY p.rank, p.attempt, p.device, bin
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
    FROM allocator
    FULL OUTER JOIN process USING (rank, attempt, device, bin)
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
