-- Question: How high did each device of one type stand in each of many equal intervals of time, event by event?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...
--   figure (text): requested, allocated, active or reserved; on cpu all are the requested
--   from_ns, until_ns (ns, common clock): the range
--   host_from_ns, host_until_ns (ns): events are read between these, by the hosts' clocks: in the range, and before it
--     in the buckets that its begin cuts
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
    SELECT attempt, rank, offset_ns, started_ns
    FROM rank_span
    WHERE session_id = $session
),
-- The source of what was held before the range, and of where a device's log begins.
cell AS (
    SELECT
        b.attempt,
        b.rank,
        b.device,
        l.started_ns,
        coalesce(l.offset_ns, 0) AS offset_ns,
        b.seq_first,
        b.seq_last,
        b.first_ns + coalesce(l.offset_ns, 0) AS first_ns,
        b.last_ns + coalesce(l.offset_ns, 0) AS last_ns,
        CASE
            WHEN $figure = 'requested' OR $device_type = 'cpu' THEN b.last_bytes
            WHEN $figure = 'allocated' THEN b.allocated_last_bytes
            WHEN $figure = 'active' THEN b.active_last_bytes
            ELSE b.reserved_last_bytes
        END AS last_bytes
    FROM (
        SELECT *
        FROM memory_cell($session, 1)
        WHERE cell_ns BETWEEN $host_from_ns - $history_s::BIGINT * 2000000000 AND $host_until_ns
        UNION ALL
        SELECT *
        FROM memory_cell($session, $history_s)
        WHERE last_ns < $host_from_ns OR first_ns > $host_until_ns
    ) AS b
    LEFT JOIN life AS l USING (attempt, rank)
    WHERE split_part(b.device, ':', 1) = $device_type
),
event AS (
    SELECT
        e.attempt,
        e.rank,
        e.device,
        e.seq,
        e.time_ns + coalesce(l.offset_ns, 0) AS time_ns,
        CASE
            WHEN $figure = 'requested' OR $device_type = 'cpu' THEN e.requested_bytes
            WHEN $figure = 'allocated' THEN e.allocated_bytes
            WHEN $figure = 'active' THEN e.active_bytes
            ELSE e.reserved_bytes
        END AS bytes
    FROM memory_event AS e
    LEFT JOIN life AS l USING (attempt, rank)
    WHERE e.session_id = $session
        AND split_part(e.device, ':', 1) = $device_type
        AND e.time_ns BETWEEN $host_from_ns AND $host_until_ns
),
begin AS MATERIALIZED (
    SELECT
        attempt,
        rank,
        device,
        any_value(offset_ns) AS offset_ns,
        any_value(started_ns) AS started_ns,
        min(seq_first) AS seq_first
    FROM cell
    GROUP BY attempt, rank, device
    HAVING min(first_ns) >= $from_ns
),
first_event AS (
    SELECT
        b.attempt,
        b.rank,
        b.device,
        least(b.started_ns, min(e.time_ns) + b.offset_ns) AS started_ns,
        arg_min(
            e.requested_bytes
            + CASE e.action WHEN 'alloc' THEN -1 WHEN 'free_completed' THEN 1 ELSE 0 END * coalesce(e.size_bytes, 0),
            e.seq
        ) AS before_bytes
    FROM begin AS b
    INNER JOIN memory_event AS e USING (attempt, rank, device)
    WHERE e.session_id = $session
        -- A bucket has no more positions.
        AND e.seq BETWEEN b.seq_first AND b.seq_first + 63
        AND e.requested_bytes IS NOT NULL
        AND ($figure = 'requested' OR $device_type = 'cpu')
    GROUP BY b.attempt, b.rank, b.device, b.offset_ns, b.started_ns
),
point AS (
    SELECT attempt, rank, device, seq, time_ns, bytes FROM event
    UNION ALL
    SELECT attempt, rank, device, seq_last, last_ns, last_bytes FROM cell WHERE last_ns < $from_ns
    UNION ALL
    SELECT attempt, rank, device, -1, started_ns, before_bytes FROM first_event
)
SELECT
    rank,
    attempt,
    device,
    CASE
        WHEN time_ns < $from_ns THEN -1
        ELSE (time_ns - $from_ns) // $unit_ns * $num_bins // (($until_ns - $from_ns) // $unit_ns + 1)
    END::INTEGER AS bin,
    bin AS peak_bin,
    max(bytes) AS peak_bytes,
    arg_max(bytes, seq) AS last_bytes,
    max(seq) AS seq_last
FROM point
WHERE time_ns <= $until_ns AND bytes IS NOT NULL
GROUP BY rank, attempt, device, bin
ORDER BY rank, attempt, device, seq_last;
