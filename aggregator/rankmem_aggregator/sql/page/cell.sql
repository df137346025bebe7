-- Question: How high exactly did some ranks stand within an interval of time, and when first?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...
--   figure (text): requested, allocated, active or reserved; on cpu all are the requested
--   ranks (text): global ranks with commas between
--   first_rank, last_rank (count): the lowest and the highest of them
--   from_ns, until_ns (ns, common clock): the interval
--   lives (JSON text): of these ranks attempt, rank, offset_ns, started_ns, ended_ns and host_name, as in heat_ranks
-- Columns:
--   rank, attempt, device: of a rank the device and attempt that stood highest
--   host_name: its host
--   bytes (bytes): its highest; what was held when the interval began counts
--   at_ns (ns, common clock): since when; before the interval where it was held when that began
--   seq: the event after which it stood so high; -1 for what was held before the first event
WITH
life AS MATERIALIZED (
    SELECT unnest($lives::VARCHAR::JSON::STRUCT(
        attempt INTEGER, rank INTEGER, offset_ns BIGINT, started_ns BIGINT, ended_ns BIGINT, host_name VARCHAR
    )[], recursive := true)
),
-- Whose events are read: those of the buckets at both ends of the interval, of the first of the highest within it, of
-- the last one before it, and of a device's first where nothing is known before the interval but what was held then.
marked AS MATERIALIZED (
    SELECT
        *,
        seq_first = min(seq_first) OVER track AND requested_peak_ns >= $from_ns AS is_first,
        last_ns < $from_ns AND seq_last = max(seq_last) FILTER (last_ns < $from_ns) OVER track AS is_before,
        first_ns <= $until_ns AND last_ns >= $from_ns AND (first_ns < $from_ns OR last_ns > $until_ns) AS is_at_end,
        seq_first = arg_max(seq_first, (peak_bytes, -seq_first))
            FILTER (peak_bytes IS NOT NULL AND first_ns >= $from_ns AND last_ns <= $until_ns) OVER track AS is_highest
    FROM (
        SELECT
            b.attempt,
            b.rank,
            b.device,
            coalesce(l.offset_ns, 0) AS offset_ns,
            l.started_ns,
            l.ended_ns,
            b.seq_first,
            b.seq_last,
            b.first_ns + coalesce(l.offset_ns, 0) AS first_ns,
            b.last_ns + coalesce(l.offset_ns, 0) AS last_ns,
            b.requested_peak_ns + coalesce(l.offset_ns, 0) AS requested_peak_ns,
            b.requested_peak_seq,
            b.requested_peak_bytes,
            CASE
                WHEN $figure = 'requested' OR $device_type = 'cpu' THEN b.requested_peak_bytes
                WHEN $figure = 'allocated' THEN b.allocated_peak_bytes
                WHEN $figure = 'active' THEN b.active_peak_bytes
                ELSE b.reserved_peak_bytes
            END AS peak_bytes
        FROM memory_bucket AS b
        LEFT JOIN life AS l ON l.attempt = b.attempt AND l.rank = b.rank
        WHERE b.session_id = $session
            AND b.rank BETWEEN $first_rank AND $last_rank
            AND list_contains(string_split($ranks, ',')::INTEGER[], b.rank)
            AND split_part(b.device, ':', 1) = $device_type
    )
    WINDOW track AS (PARTITION BY attempt, rank, device)
),
-- As a list, so that DuckDB takes it to be short and looks it up: else all events of the ranks go into a hash table.
wanted AS MATERIALIZED (
    SELECT list({
        place: place,
        attempt: attempt,
        rank: rank,
        device: device,
        is_first: is_first,
        offset_ns: offset_ns,
        started_ns: started_ns,
        ended_ns: ended_ns,
        seq_first: seq_first,
        seq_last: seq_last
    }) AS buckets,
    -- By these bounds on the table's own column DuckDB passes over most of the file.
    coalesce(min(first_ns - offset_ns) FILTER (place = 'begin'), 9223372036854775807) AS begin_from_ns,
    max(last_ns - offset_ns) FILTER (place = 'begin') AS begin_until_ns,
    coalesce(min(first_ns - offset_ns) FILTER (place = 'end'), 9223372036854775807) AS end_from_ns,
    max(last_ns - offset_ns) FILTER (place = 'end') AS end_until_ns,
    coalesce(min(first_ns - offset_ns) FILTER (place = 'highest'), 9223372036854775807) AS highest_from_ns,
    max(last_ns - offset_ns) FILTER (place = 'highest') AS highest_until_ns
    FROM (
        SELECT
            *,
            CASE
                WHEN is_first OR is_before OR (is_at_end AND first_ns < $from_ns) THEN 'begin'
                WHEN is_at_end THEN 'end'
                ELSE 'highest'
            END AS place
        FROM marked
        WHERE is_first OR is_before OR is_at_end OR is_highest
    )
),
event AS MATERIALIZED (
    SELECT
        m.attempt,
        m.rank,
        m.device,
        m.is_first,
        e.seq,
        e.time_ns + m.offset_ns AS time_ns,
        m.started_ns,
        m.ended_ns,
        CASE
            WHEN $figure = 'requested' OR $device_type = 'cpu' THEN e.requested_bytes
            WHEN $figure = 'allocated' THEN e.allocated_bytes
            WHEN $figure = 'active' THEN e.active_bytes
            ELSE e.reserved_bytes
        END AS bytes,
        CASE e.action WHEN 'alloc' THEN -1 WHEN 'free_completed' THEN 1 ELSE 0 END * coalesce(e.size_bytes, 0) AS undone_bytes
    FROM (SELECT unnest(buckets, recursive := true) FROM wanted) AS m
    -- Three scans: in one, the bounds would span all that lies between the places.
    INNER JOIN (
        SELECT
            'begin' AS place, attempt, rank, device, seq, time_ns, action, size_bytes, requested_bytes, allocated_bytes,
            active_bytes, reserved_bytes
        FROM wanted AS w
        INNER JOIN memory_event AS e ON e.time_ns >= w.begin_from_ns AND e.time_ns <= w.begin_until_ns
        WHERE session_id = $session AND rank BETWEEN $first_rank AND $last_rank
        UNION ALL
        SELECT
            'end' AS place, attempt, rank, device, seq, time_ns, action, size_bytes, requested_bytes, allocated_bytes,
            active_bytes, reserved_bytes
        FROM wanted AS w
        INNER JOIN memory_event AS e ON e.time_ns >= w.end_from_ns AND e.time_ns <= w.end_until_ns
        WHERE session_id = $session AND rank BETWEEN $first_rank AND $last_rank
        UNION ALL
        SELECT
            'highest' AS place, attempt, rank, device, seq, time_ns, action, size_bytes, requested_bytes, allocated_bytes,
            active_bytes, reserved_bytes
        FROM wanted AS w
        INNER JOIN memory_event AS e ON e.time_ns >= w.highest_from_ns AND e.time_ns <= w.highest_until_ns
        WHERE session_id = $session AND rank BETWEEN $first_rank AND $last_rank
    ) AS e
        ON e.place = m.place
        AND e.attempt = m.attempt
        AND e.rank = m.rank
        AND e.device = m.device
        AND e.seq BETWEEN m.seq_first AND m.seq_last
)
SELECT h.rank, h.attempt, h.device, l.host_name, h.bytes, h.at_ns, h.seq
FROM (
    SELECT
        rank,
        attempt,
        device,
        max(bytes) AS bytes,
        arg_min(time_ns, (-bytes, seq)) AS at_ns,
        arg_min(seq, (-bytes, seq)) AS seq
    FROM (
        -- What was known last when the interval began, and all within it.
        SELECT *
        FROM (
            SELECT attempt, rank, device, ended_ns, seq, time_ns, bytes FROM event WHERE bytes IS NOT NULL
            UNION ALL
            SELECT
                attempt,
                rank,
                device,
                any_value(ended_ns),
                -1,
                least(any_value(started_ns), min(time_ns)),
                arg_min(bytes + undone_bytes, seq)
            FROM event
            WHERE is_first AND bytes IS NOT NULL AND ($figure = 'requested' OR $device_type = 'cpu')
            GROUP BY attempt, rank, device
            UNION ALL
            -- Where a bucket's events are not stored, its highest is.
            SELECT attempt, rank, device, ended_ns, requested_peak_seq, requested_peak_ns, requested_peak_bytes
            FROM marked
            WHERE $figure = 'requested' OR $device_type = 'cpu'
        )
        WHERE time_ns <= $until_ns
        QUALIFY time_ns >= $from_ns
            OR seq = max(seq) FILTER (time_ns < $from_ns) OVER (PARTITION BY attempt, rank, device)
    )
    WHERE ended_ns IS NULL OR ended_ns >= $from_ns OR time_ns >= $from_ns
    GROUP BY rank, attempt, device
) AS h
LEFT JOIN life AS l ON l.attempt = h.attempt AND l.rank = h.rank
CROSS JOIN unstreamed
QUALIFY row_number() OVER (PARTITION BY h.rank ORDER BY h.bytes DESC, h.attempt DESC, h.device) = 1
ORDER BY h.bytes DESC, h.rank;
