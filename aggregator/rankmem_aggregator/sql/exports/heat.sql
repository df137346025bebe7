-- Question: How high did each rank stand in each of many equal intervals of time, on devices of one type?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...
--   ranks (text): global ranks, separated by commas; NULL for all
--   from_ns, until_ns (ns, common clock): the range
--   num_bins: number of intervals
-- Columns:
--   rank: global rank
--   device: one of its devices
--   bin: the interval, from 0; -1 for the time before the range
--   peak_bytes (bytes): the highest requested bytes that are known in it; what a device held before its first
--     event counts from the process's start on
--   last_bytes (bytes): the last that are known
WITH bucket AS (
    SELECT b.*, coalesce(s.offset_ns, 0) AS offset_ns
    FROM memory_bucket AS b
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
    WHERE b.session_id = $session
        AND split_part(b.device, ':', 1) = $device_type
        AND ($ranks::VARCHAR IS NULL OR list_contains(string_split($ranks, ','), b.rank::VARCHAR))
),
begin AS (
    SELECT attempt, rank, device, offset_ns, min(seq_first) AS seq_first, arg_min(seq_last, seq_first) AS seq_last
    FROM bucket
    GROUP BY attempt, rank, device, offset_ns
),
-- Of each device the first event: what it held before, and after.
first_event AS (
    SELECT
        b.rank,
        b.device,
        min(e.seq) AS seq,
        min(e.time_ns) + b.offset_ns AS first_ns,
        least(any_value(s.started_ns), min(e.time_ns) + b.offset_ns) AS started_ns,
        arg_min(e.requested_bytes, e.seq) AS requested_bytes,
        arg_min(
            e.requested_bytes
            + CASE e.action WHEN 'alloc' THEN -1 WHEN 'free_completed' THEN 1 ELSE 0 END * coalesce(e.size_bytes, 0),
            e.seq
        ) AS before_bytes
    FROM begin AS b
    INNER JOIN memory_event AS e USING (attempt, rank, device)
    LEFT JOIN rank_span AS s ON s.session_id = $session AND s.attempt = b.attempt AND s.rank = b.rank
    WHERE e.session_id = $session
        AND e.seq BETWEEN b.seq_first AND b.seq_last
        AND e.requested_bytes IS NOT NULL
    GROUP BY b.attempt, b.rank, b.device, b.offset_ns
),
point AS (
    SELECT
        rank,
        device,
        requested_peak_ns + offset_ns AS time_ns,
        requested_peak_seq AS seq,
        requested_peak_bytes AS bytes
    FROM bucket
    UNION ALL
    SELECT rank, device, last_ns + offset_ns, seq_last, requested_last_bytes FROM bucket
    UNION ALL
    SELECT rank, device, started_ns, -1, before_bytes FROM first_event
    UNION ALL
    SELECT rank, device, first_ns, seq, requested_bytes FROM first_event
)
SELECT
    rank,
    device,
    CASE
        WHEN time_ns < $from_ns THEN -1
        ELSE (time_ns - $from_ns) * $num_bins // ($until_ns - $from_ns + 1)
    END::INTEGER AS bin,
    max(bytes) AS peak_bytes,
    arg_max(bytes, (time_ns, seq)) AS last_bytes
FROM point
WHERE time_ns <= $until_ns
GROUP BY rank, device, bin
ORDER BY rank, device, bin;
