-- Question: How high did a device of a rank stand in each of many intervals of time of about the same length, from its buckets?
-- Parameters:
--   session (text): session id
--   attempt, rank, device: which device
--   offset_ns (ns): added to its host's times
--   from_ns, until_ns (ns, common clock): the range, both ends included
--   width_ns (ns): length of an interval; each ends with the bucket that begins in it, so at most a bucket later
-- Columns:
--   place: the interval, from 0; one in which no bucket begins has no row, and the value before it holds
--   first_ns (ns, common clock): of its first event
--   events: in it
--   seq: the first event after which requested bytes stood highest
--   last_seq, end_ns (common clock): its last event, and when
--   requested, requested_last (bytes): highest and last after an event in it; the lowest is not in the buckets
--   allocated, …; active, …; reserved, … (bytes): the same of the allocator's own figures; NULL where not known
--   process, process_last (bytes): of the whole process, by the samples in it
-- What lasts longer than an interval, or lies across an end of the range, is read from memory_event. Columns …_low are NULL.
WITH bucket AS MATERIALIZED (
    SELECT *, last_ns - first_ns < $width_ns AND first_ns >= $from_ns - $offset_ns AND last_ns <= $until_ns - $offset_ns AS is_whole
    FROM memory_bucket
    WHERE session_id = $session
        AND attempt = $attempt
        AND rank = $rank
        AND device = $device
        AND last_ns >= $from_ns - $offset_ns
        AND first_ns <= $until_ns - $offset_ns
),
-- The events of a bucket that is read one by one, in blocks of 64 positions.
block AS (
    SELECT seq_first, seq_last, of_64
    FROM bucket
    CROSS JOIN range(seq_first // 64, seq_last // 64 + 1) AS part(of_64)
    WHERE NOT is_whole
),
cell AS (
    SELECT
        first_ns, last_ns, events, requested_peak_seq AS seq, seq_last,
        requested_peak_bytes AS requested, requested_last_bytes AS requested_last,
        -- Of host memory the buckets repeat the requested bytes as the other figures; events have none.
        if(device IN ('cpu', 'pinned'), NULL, allocated_peak_bytes) AS allocated,
        if(device IN ('cpu', 'pinned'), NULL, allocated_last_bytes) AS allocated_last,
        if(device IN ('cpu', 'pinned'), NULL, active_peak_bytes) AS active,
        if(device IN ('cpu', 'pinned'), NULL, active_last_bytes) AS active_last,
        if(device IN ('cpu', 'pinned'), NULL, reserved_peak_bytes) AS reserved,
        if(device IN ('cpu', 'pinned'), NULL, reserved_last_bytes) AS reserved_last
    FROM bucket
    WHERE is_whole
    UNION ALL
    SELECT
        e.time_ns, e.time_ns, 1, e.seq, e.seq,
        e.requested_bytes, e.requested_bytes, e.allocated_bytes, e.allocated_bytes,
        e.active_bytes, e.active_bytes, e.reserved_bytes, e.reserved_bytes
    FROM memory_event AS e
    INNER JOIN block AS b ON e.seq // 64 = b.of_64 AND e.seq BETWEEN b.seq_first AND b.seq_last
    WHERE e.session_id = $session
        AND e.attempt = $attempt
        AND e.rank = $rank
        AND e.device = $device
        AND e.time_ns BETWEEN $from_ns - $offset_ns AND $until_ns - $offset_ns
),
highest AS (
    SELECT
        (first_ns - ($from_ns - $offset_ns)) // $width_ns AS place,
        min(first_ns) + $offset_ns AS first_ns,
        sum(events)::BIGINT AS events,
        arg_max(seq, (requested, -seq)) AS seq,
        max(seq_last) AS last_seq,
        max(last_ns) + $offset_ns AS end_ns,
        max(requested) AS requested,
        NULL::BIGINT AS requested_low,
        arg_max(requested_last, seq_last) AS requested_last,
        max(allocated) AS allocated,
        NULL::BIGINT AS allocated_low,
        arg_max(allocated_last, seq_last) AS allocated_last,
        max(active) AS active,
        NULL::BIGINT AS active_low,
        arg_max(active_last, seq_last) AS active_last,
        max(reserved) AS reserved,
        NULL::BIGINT AS reserved_low,
        arg_max(reserved_last, seq_last) AS reserved_last
    FROM cell
    GROUP BY place
),
sample AS (
    SELECT
        (time_ns - ($from_ns - $offset_ns)) // $width_ns AS place,
        max(app_reserved_bytes) AS process,
        NULL::BIGINT AS process_low,
        arg_max(app_reserved_bytes, seq) AS process_last
    FROM process_sample
    WHERE session_id = $session
        AND attempt = $attempt
        AND rank = $rank
        AND device = $device
        AND app_reserved_bytes IS NOT NULL
        AND time_ns BETWEEN $from_ns - $offset_ns AND $until_ns - $offset_ns
    GROUP BY place
)
SELECT place, h.* EXCLUDE (place), s.* EXCLUDE (place)
FROM highest AS h
FULL OUTER JOIN sample AS s USING (place)
CROSS JOIN unstreamed
ORDER BY place;
