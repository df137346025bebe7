-- Question: Which stretches that are not here can hold the job's peak?
-- Parameters:
--   session (text): session id
--   least (text): JSON list of {device_type, bytes}: while the sum can have stood as high; NULL: while it can have
--     stood highest
-- Columns:
--   attempt, rank: whose
--   host_uid: the host
--   spool_id: the spool by which its shipper knows it
--   sequence_first, sequence_last: the stretch
--   size_bytes (bytes): of its rows as they would be sent
--   is_gone: true if the host has it no longer
-- Scatter: none
WITH bound AS MATERIALIZED (
    FROM job_peak_course($session)
),
least_bytes AS (
    SELECT device_type, max(bound_bytes) AS bytes
    FROM bound
    WHERE $least::VARCHAR IS NULL
    GROUP BY device_type
    UNION ALL
    SELECT unnest($least::VARCHAR::STRUCT(device_type VARCHAR, bytes BIGINT)[], recursive := true)
),
-- num_hot: times up to this one from which on the sum may have stood as high.
hot AS MATERIALIZED (
    SELECT
        b.device_type,
        b.time_ns,
        b.bound_bytes >= l.bytes AS is_hot,
        sum((b.bound_bytes >= l.bytes)::INTEGER) OVER (PARTITION BY b.device_type ORDER BY b.time_ns) AS num_hot
    FROM bound AS b
    INNER JOIN least_bytes AS l USING (device_type)
),
missing AS MATERIALIZED (
    SELECT
        attempt,
        rank,
        max(host_uid) AS host_uid,
        spool_id,
        sequence_first,
        sequence_last,
        max(size_bytes) AS size_bytes,
        bool_or(place = 'gone') AS is_gone
    FROM availability
    WHERE session_id = $session
    GROUP BY attempt, rank, spool_id, sequence_first, sequence_last
    HAVING NOT bool_or(place = 'here')
),
-- A bucket lies in one stretch. What it has of a single event is known.
piece AS (
    SELECT
        split_part(b.device, ':', 1) AS device_type,
        b.first_ns + coalesce(s.offset_ns, 0) AS first_ns,
        b.last_ns + coalesce(s.offset_ns, 0) AS last_ns,
        m.*
    FROM (
        SELECT * FROM memory_bucket
        WHERE session_id = $session AND events > 0 AND seq_first < seq_last
    ) AS b
    ASOF INNER JOIN missing AS m
        ON b.attempt = m.attempt AND b.rank = m.rank AND b.seq_first >= m.sequence_first
    LEFT JOIN rank_span AS s ON s.session_id = $session AND s.attempt = b.attempt AND s.rank = b.rank
    WHERE m.sequence_last >= b.seq_first
)
SELECT DISTINCT
    p.attempt, p.rank, p.host_uid, p.spool_id, p.sequence_first, p.sequence_last, p.size_bytes, p.is_gone
FROM piece AS p
ASOF INNER JOIN hot AS f ON f.device_type = p.device_type AND p.first_ns >= f.time_ns
ASOF INNER JOIN hot AS l ON l.device_type = p.device_type AND p.last_ns >= l.time_ns
CROSS JOIN unstreamed
WHERE f.is_hot OR l.num_hot > f.num_hot
ORDER BY p.attempt, p.rank, p.sequence_first;
