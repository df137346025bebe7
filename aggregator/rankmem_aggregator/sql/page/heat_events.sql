-- Question: How high did each device of one type stand in each of many equal intervals of time, event by event?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...
--   figure (text): requested, allocated, active or reserved; on cpu all are the requested
--   from_ns, until_ns (ns, common clock): the range
--   host_from_ns, host_until_ns (ns): events are read between these, by the hosts' clocks: in the range, and before it
--     in the buckets that its begin cuts
--   has_offsets: false where the clocks of all hosts are the common one: then it is not looked up
--   history_s (s): the widest part of the log that is taken as a whole for what was held long before the range
--   num_bins: number of intervals
--   unit_ns (ns): times are divided by it before the intervals are counted; 1 unless the range is very long
-- Columns:
--   rank, attempt, device: a device of a rank
--   bin: the interval, from 0; -1 before the range
--   peak_bin: the same
--   peak_bytes (bytes): the highest after an event in it
--   last_bytes (bytes): what its last event left
--   seq_last: its last event; -1 for what a device held when its process began, before its first event
WITH life AS MATERIALIZED (
    SELECT attempt, rank, coalesce(offset_ns, 0) AS offset_ns, started_ns
    FROM rank_span
    WHERE session_id = $session
),
-- Events of the range, what parts of the log before it left, and where the log of a device begins.
part AS MATERIALIZED (
    SELECT
        p.rank,
        p.attempt,
        p.device,
        interval_of(p.time_ns + coalesce(l.offset_ns, 0), $from_ns, $until_ns, $num_bins, $unit_ns) AS bin,
        -- What is left at the end of a part that reaches into the range is known by its events.
        max(p.bytes) FILTER (p.is_event OR p.time_ns + coalesce(l.offset_ns, 0) < $from_ns) AS peak_bytes,
        arg_max(p.bytes, p.seq) FILTER (p.is_event OR p.time_ns + coalesce(l.offset_ns, 0) < $from_ns) AS last_bytes,
        max(p.seq) AS seq_last,
        min(p.seq_first) AS seq_first,
        min(p.first_ns + coalesce(l.offset_ns, 0)) AS first_ns
    FROM (
        SELECT
            attempt,
            rank,
            device,
            true AS is_event,
            seq,
            seq AS seq_first,
            time_ns,
            time_ns AS first_ns,
            CASE
                WHEN $figure = 'requested' OR $device_type = 'cpu' THEN requested_bytes
                WHEN $figure = 'allocated' THEN allocated_bytes
                WHEN $figure = 'active' THEN active_bytes
                ELSE reserved_bytes
            END AS bytes
        FROM memory_event
        WHERE session_id = $session
            AND split_part(device, ':', 1) = $device_type
            AND time_ns BETWEEN $host_from_ns AND $host_until_ns
        UNION ALL
        SELECT
            attempt,
            rank,
            device,
            false AS is_event,
            seq_last,
            seq_first,
            last_ns,
            first_ns,
            CASE
                WHEN $figure = 'requested' OR $device_type = 'cpu' THEN last_bytes
                WHEN $figure = 'allocated' THEN allocated_last_bytes
                WHEN $figure = 'active' THEN active_last_bytes
                ELSE reserved_last_bytes
            END AS bytes
        FROM (
            SELECT *
            FROM memory_cell($session, 1)
            WHERE cell_ns BETWEEN $host_from_ns - $history_s::BIGINT * 2000000000 AND $host_until_ns
            UNION ALL
            SELECT c.*
            FROM memory_cell($session, $history_s) AS c
            CROSS JOIN unstreamed
            WHERE last_ns < $host_from_ns OR first_ns > $host_until_ns
        )
        WHERE split_part(device, ':', 1) = $device_type
    ) AS p
    LEFT JOIN life AS l ON $has_offsets AND l.attempt = p.attempt AND l.rank = p.rank
    GROUP BY p.rank, p.attempt, p.device, bin
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
SELECT rank, attempt, device, bin, bin AS peak_bin, peak_bytes, last_bytes, seq_last
FROM part
WHERE peak_bytes IS NOT NULL AND bin < $num_bins
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
