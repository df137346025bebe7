-- Question: Which devices of which ranks have events in a range of time (of the whole session also: hold something
-- from before the recording), and at which positions of their logs?
-- Parameters:
--   session (text): session id
--   from_ns, until_ns (ns, common clock): the range; NULL: no bound
-- Columns:
--   attempt, rank, device: the device
--   host_uid, host_name, pid: where it ran
--   offset_ns (ns): add to the host's times to get the common clock
--   started_ns, ended_ns (ns, common clock): of the process
--   seq_first, seq_last: first and last position in the range
--   first_ns, last_ns (ns, common clock): their times
--   num_events: how many
--   peak_bytes (bytes): the highest requested bytes after one of them, or just before the first; without events
--     what it holds
--   num_streams, num_components: how many different ones they have
WITH active AS (
    SELECT
        e.attempt,
        e.rank,
        e.device,
        min(e.seq) AS seq_first,
        max(e.seq) AS seq_last,
        min(e.time_ns) AS first_ns,
        max(e.time_ns) AS last_ns,
        count(*) AS num_events,
        greatest(
            max(e.requested_bytes),
            arg_min(e.requested_bytes + CASE e.action WHEN 'free_completed' THEN e.size_bytes ELSE 0 END, e.seq)
        ) AS peak_bytes,
        count(DISTINCT e.stream) AS num_streams,
        count(DISTINCT e.component) AS num_components
    FROM memory_event AS e
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
    CROSS JOIN unstreamed
    WHERE e.session_id = $session
        AND ($from_ns::BIGINT IS NULL OR e.time_ns + coalesce(s.offset_ns, 0) >= $from_ns)
        AND ($until_ns::BIGINT IS NULL OR e.time_ns + coalesce(s.offset_ns, 0) <= $until_ns)
    GROUP BY e.attempt, e.rank, e.device
),
quiet AS (
    SELECT b.*, d.num_streams, d.num_components
    FROM (
        SELECT
            attempt,
            rank,
            device,
            min(seq_first) AS seq_first,
            max(seq_last) AS seq_last,
            min(first_ns) AS first_ns,
            max(last_ns) AS last_ns,
            0 AS num_events,
            max(requested_peak_bytes) AS peak_bytes
        FROM memory_bucket
        WHERE session_id = $session AND $from_ns::BIGINT IS NULL AND $until_ns::BIGINT IS NULL
        GROUP BY attempt, rank, device
        HAVING sum(events) = 0 AND max(requested_peak_bytes) > 0
    ) AS b
    INNER JOIN (
        SELECT
            attempt,
            rank,
            device,
            count(DISTINCT stream) AS num_streams,
            count(DISTINCT component) AS num_components
        FROM allocation_record
        CROSS JOIN unstreamed
        WHERE session_id = $session
        GROUP BY attempt, rank, device
    ) AS d USING (attempt, rank, device)
)
SELECT
    e.attempt,
    e.rank,
    e.device,
    s.host_uid,
    coalesce(h.host_name, s.host_uid, 'unknown') AS host_name,
    r.pid,
    coalesce(s.offset_ns, 0) AS offset_ns,
    s.started_ns,
    s.ended_ns,
    e.seq_first,
    e.seq_last,
    e.first_ns + coalesce(s.offset_ns, 0) AS first_ns,
    e.last_ns + coalesce(s.offset_ns, 0) AS last_ns,
    e.num_events,
    e.peak_bytes,
    e.num_streams,
    e.num_components
FROM (
    FROM active
    UNION ALL
    FROM quiet
) AS e
LEFT JOIN rank_span AS s ON s.session_id = $session AND s.attempt = e.attempt AND s.rank = e.rank
LEFT JOIN rank_info AS r ON r.session_id = $session AND r.attempt = e.attempt AND r.rank = e.rank
LEFT JOIN host_info AS h ON h.host_uid = s.host_uid
ORDER BY e.rank, e.attempt, e.device;
