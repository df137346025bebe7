-- Question: What did each process hold on its device: at the instant at which the device held most, or over time?
-- Parameters:
--   session (text): session id
--   place (text): over time of this device alone; NULL: the fullest instant of each
--   attempt (count): with place: of this start of the workers
--   num_instants (count): with place: in so many equal intervals of time the last sample of each
-- Columns:
--   place (text): the device, for whichever process: its UUID, else its host and index
--   has_uuid: whether that is a UUID, so that processes of one place are on one device
--   attempt, rank, device, host_name: whose process
--   at_ns (ns, common clock): the instant; the fullest: the first sample at which the device, or where that is not known a
--     process on it, held most, of those at which the allocator's bytes are known
--   is_there: whether the process was there then: its recording had begun, and it was not over
--   sampled_ns (ns, common clock): of the process: the last sample before, else its first
--   sampled_seq: that sample's position in the rank's log
--   app_reserved_bytes (bytes): held by the process then; NULL where that is not known
--   known_bytes (bytes): of that what its allocators held; NULL where that is not known
--   early_bytes (bytes): held by the process at its first sample, where that came before the allocator's first event, or
--     within 100 ms after it; NULL where none did
--   early_seq: that sample's position in the rank's log
--   early_after_ns (ns): so long after the first event; below 0 before it
--   device_used_bytes, device_total_bytes (bytes): of the device then; NULL where that is not known
-- Scatter: none
WITH sample AS (
    SELECT
        coalesce(d.uuid, concat(s.host_uid, ' ', a.device)) AS place,
        d.uuid IS NOT NULL AS has_uuid,
        s.host_uid,
        s.started_ns,
        s.ended_ns,
        a.*,
        a.time_ns - coalesce(s.offset_ns, 0) - f.first_ns AS after_first_ns
    FROM app_curve AS a
    LEFT JOIN device_info AS d USING (session_id, attempt, rank, device)
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
    LEFT JOIN (
        SELECT session_id, attempt, rank, device, min(first_ns) AS first_ns
        FROM memory_bucket
        WHERE session_id = $session
        GROUP BY session_id, attempt, rank, device
    ) AS f USING (session_id, attempt, rank, device)
    CROSS JOIN unstreamed
    WHERE a.session_id = $session
),
instant AS (
    SELECT place, best.attempt AS attempt, best.at_ns AS at_ns
    FROM (
        SELECT
            place,
            arg_max(
                {attempt: attempt, at_ns: time_ns},
                (
                    known_bytes IS NOT NULL,
                    coalesce(device_used_bytes, -1),
                    coalesce(app_reserved_bytes, -1),
                    -time_ns
                )
            ) AS best
        FROM sample
        WHERE $place::VARCHAR IS NULL
        GROUP BY place
    )
    CROSS JOIN unstreamed
    UNION ALL
    SELECT place, attempt, max(time_ns)
    FROM (
        SELECT
            place,
            attempt,
            time_ns,
            interval_of(time_ns, min(time_ns) OVER (), max(time_ns) OVER (), $num_instants, 1) AS part
        FROM sample
        WHERE place = $place AND attempt = $attempt
    )
    CROSS JOIN unstreamed
    GROUP BY place, attempt, part
),
chosen AS (
    SELECT
        s.place,
        s.has_uuid,
        s.attempt,
        s.rank,
        s.device,
        any_value(s.host_uid) AS host_uid,
        f.at_ns,
        least(any_value(s.started_ns), min(s.time_ns)) <= any_value(f.at_ns)
        AND (
            any_value(s.ended_ns) IS NULL
            OR greatest(any_value(s.ended_ns), max(s.time_ns)) >= any_value(f.at_ns)
        ) AS is_there,
        -- Some recordings have rows of the process and rows of the device.
        coalesce(
            arg_max(
                {time_ns: s.time_ns, seq: s.seq, app: s.app_reserved_bytes, known: s.known_bytes},
                (s.app_reserved_bytes IS NOT NULL, s.seq)
            ) FILTER (WHERE s.time_ns <= f.at_ns),
            arg_min(
                {time_ns: s.time_ns, seq: s.seq, app: s.app_reserved_bytes, known: s.known_bytes},
                (s.app_reserved_bytes IS NULL, s.seq)
            )
        ) AS process,
        arg_min(
            {bytes: s.app_reserved_bytes, seq: s.seq, after_ns: s.after_first_ns},
            s.seq
        ) FILTER (
            WHERE s.app_reserved_bytes IS NOT NULL
                AND s.known_bytes IS NOT NULL
                -- What the allocator held before its first event is known if that was nothing.
                AND (s.after_first_ns >= 0 OR s.known_bytes = 0)
                AND s.after_first_ns <= 100_000_000
        ) AS early,
        coalesce(
            arg_max(s.device_used_bytes, s.seq) FILTER (WHERE s.time_ns <= f.at_ns),
            arg_min(s.device_used_bytes, s.seq)
        ) AS device_used_bytes,
        max(s.device_total_bytes) AS device_total_bytes
    FROM sample AS s
    INNER JOIN instant AS f ON s.place = f.place AND s.attempt = f.attempt
    GROUP BY ALL
)
SELECT
    place,
    has_uuid,
    attempt,
    rank,
    device,
    host_name,
    at_ns,
    is_there,
    process.time_ns AS sampled_ns,
    process.seq AS sampled_seq,
    process.app AS app_reserved_bytes,
    process.known AS known_bytes,
    early.bytes AS early_bytes,
    early.seq AS early_seq,
    early.after_ns AS early_after_ns,
    device_used_bytes,
    device_total_bytes
FROM chosen
LEFT JOIN host_info USING (host_uid)
ORDER BY place, at_ns, attempt, rank, device;
