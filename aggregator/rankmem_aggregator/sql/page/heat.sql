-- Question: How high did each device of one type stand in each of many equal intervals of time, by parts of its log?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...
--   figure (text): requested, allocated, active or reserved; on cpu all are the requested
--   from_ns, until_ns (ns, common clock): the range
--   num_bins: number of intervals
--   unit_ns (ns): times are divided by it before the intervals are counted; 1 unless the range is very long
--   width_s (s): the widest part of the log that is taken as a whole; below 4 a row of memory_bucket
--   history_s (s): the same for what was before the range
--   has_offsets: false where the clocks of all hosts are the common one: then it is not looked up
--   host_from_ns, host_until_ns (ns): the range, as the earliest and the latest of the hosts' clocks has it
-- Columns:
--   rank, attempt, device: a device of a rank
--   bin: the interval of last_bytes, from 0; -1 before the range, num_bins after it
--   peak_bin: the interval of peak_bytes, likewise
--   peak_bytes (bytes): highest of the parts whose highest lies in peak_bin and whose last event lies in bin
--   last_bytes (bytes): what the last of these parts left
--   seq_last: its last event; -1 for what a device held when its process began, before its first event
WITH life AS MATERIALIZED (
    SELECT attempt, rank, coalesce(offset_ns, 0) AS offset_ns, started_ns
    FROM rank_span
    WHERE session_id = $session
),
-- The source is parts of a device's log with their highest and their last. In the range and shortly before it none is
-- wider than an interval; of what is long over the last is enough, and of what comes after it where it begins.
part AS MATERIALIZED (
    SELECT
        rank,
        attempt,
        device,
        interval_of(last_ns, $from_ns, $until_ns, $num_bins, $unit_ns) AS bin,
        interval_of(peak_ns, $from_ns, $until_ns, $num_bins, $unit_ns) AS peak_bin,
        max(peak_bytes) AS peak_bytes,
        arg_max(last_bytes, seq_last) AS last_bytes,
        max(seq_last) AS seq_last,
        min(seq_first) AS seq_first,
        min(first_ns) AS first_ns
    FROM (
        SELECT
            b.attempt,
            b.rank,
            b.device,
            b.seq_first,
            b.seq_last,
            b.first_ns + coalesce(l.offset_ns, 0) AS first_ns,
            b.peak_ns + coalesce(l.offset_ns, 0) AS peak_ns,
            b.last_ns + coalesce(l.offset_ns, 0) AS last_ns,
            CASE
                WHEN $figure = 'requested' OR $device_type = 'cpu' THEN b.peak_bytes
                WHEN $figure = 'allocated' THEN b.allocated_peak_bytes
                WHEN $figure = 'active' THEN b.active_peak_bytes
                ELSE b.reserved_peak_bytes
            END AS peak_bytes,
            CASE
                WHEN $figure = 'requested' OR $device_type = 'cpu' THEN b.last_bytes
                WHEN $figure = 'allocated' THEN b.allocated_last_bytes
                WHEN $figure = 'active' THEN b.active_last_bytes
                ELSE b.reserved_last_bytes
            END AS last_bytes
        FROM (
            SELECT *
            FROM memory_cell($session, $width_s)
            WHERE cell_ns BETWEEN $host_from_ns - $history_s::BIGINT * 2000000000 AND $host_until_ns
            UNION ALL
            SELECT c.*
            FROM memory_cell($session, $history_s) AS c
            CROSS JOIN unstreamed
            WHERE last_ns < $host_from_ns OR first_ns > $host_until_ns
        ) AS b
        LEFT JOIN life AS l ON $has_offsets AND l.attempt = b.attempt AND l.rank = b.rank
        WHERE split_part(b.device, ':', 1) = $device_type
    )
    GROUP BY rank, attempt, device, bin, peak_bin
),
-- Of each device whose log does not begin before the range the first event: what it held before that.
first_event AS (
    SELECT
        b.attempt,
        b.rank,
        b.device,
        least(any_value(l.started_ns), min(e.time_ns) + coalesce(any_value(l.offset_ns), 0)) AS started_ns,
        arg_min(
            e.requested_bytes
            + CASE e.action WHEN 'alloc' THEN -1 WHEN 'free_completed' THEN 1 ELSE 0 END * coalesce(e.size_bytes, 0),
            e.seq
        ) AS before_bytes
    FROM (
        SELECT attempt, rank, device, min(seq_first) AS seq_first
        FROM part
        GROUP BY attempt, rank, device
        HAVING min(first_ns) >= $from_ns
    ) AS b
    INNER JOIN memory_event AS e USING (attempt, rank, device)
    LEFT JOIN life AS l USING (attempt, rank)
    WHERE e.session_id = $session
        -- A bucket has no more positions.
        AND e.seq BETWEEN b.seq_first AND b.seq_first + 63
        AND e.requested_bytes IS NOT NULL
        AND ($figure = 'requested' OR $device_type = 'cpu')
    GROUP BY b.attempt, b.rank, b.device
)
SELECT rank, attempt, device, bin, peak_bin, peak_bytes, last_bytes, seq_last
FROM part
WHERE peak_bytes IS NOT NULL AND peak_bin < $num_bins
UNION ALL
SELECT
    rank,
    attempt,
    device,
    interval_of(started_ns, $from_ns, $until_ns, $num_bins, $unit_ns) AS bin,
    bin AS peak_bin,
    before_bytes AS peak_bytes,
    before_bytes AS last_bytes,
    -1 AS seq_last
FROM first_event
WHERE started_ns <= $until_ns
ORDER BY rank, attempt, device, seq_last;
