-- Question: How high and how low did a device of a rank stand in each of many equal intervals of time? Exact, from its events.
-- Parameters:
--   session (text): session id
--   attempt, rank, device: which device
--   offset_ns (ns): added to its host's times
--   from_ns, until_ns (ns, common clock): the range, both ends included
--   width_ns (ns): length of an interval
-- Columns:
--   place: the interval, from 0; one without events and samples has no row, and the value before it holds
--   first_ns (ns, common clock): of its first event
--   events: in it
--   seq: the first event after which requested bytes stood highest
--   last_seq, end_ns (common clock): its last event, and when
--   requested, requested_low, requested_last (bytes): highest, lowest and last after an event in it
--   allocated, …; active, …; reserved, … (bytes): the same of the allocator's own figures; NULL where not known
--   process, process_low, process_last (bytes): of the whole process, by the samples in it
WITH event AS (
    SELECT time_ns, seq, requested_bytes, allocated_bytes, active_bytes, reserved_bytes
    FROM memory_event
    WHERE session_id = $session
        AND attempt = $attempt
        AND rank = $rank
        AND device = $device
        AND time_ns BETWEEN $from_ns - $offset_ns AND $until_ns - $offset_ns
    UNION ALL BY NAME
    SELECT time_ns, seq, requested_bytes
    FROM held_before
    WHERE session_id = $session
        AND attempt = $attempt
        AND rank = $rank
        AND device = $device
        AND time_ns BETWEEN $from_ns - $offset_ns AND $until_ns - $offset_ns
),
highest AS (
    SELECT
        (time_ns - ($from_ns - $offset_ns)) // $width_ns AS place,
        min(time_ns) + $offset_ns AS first_ns,
        count(*) AS events,
        -- As (requested_bytes, -seq) orders, in half of the time.
        arg_max(seq, requested_bytes::HUGEINT * 4611686018427387904 - seq) AS seq,
        max(seq) AS last_seq,
        max(time_ns) + $offset_ns AS end_ns,
        max(requested_bytes) AS requested,
        min(requested_bytes) AS requested_low,
        arg_max(requested_bytes, seq) AS requested_last,
        max(allocated_bytes) AS allocated,
        min(allocated_bytes) AS allocated_low,
        arg_max(allocated_bytes, seq) AS allocated_last,
        max(active_bytes) AS active,
        min(active_bytes) AS active_low,
        arg_max(active_bytes, seq) AS active_last,
        max(reserved_bytes) AS reserved,
        min(reserved_bytes) AS reserved_low,
        arg_max(reserved_bytes, seq) AS reserved_last
    FROM event
    GROUP BY place
),
sample AS (
    SELECT
        (time_ns - ($from_ns - $offset_ns)) // $width_ns AS place,
        max(app_reserved_bytes) AS process,
        min(app_reserved_bytes) AS process_low,
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
ORDER BY place;
