-- Question: Which devices of which ranks have events in a range of time, and at which positions of their logs?
-- Parameters:
--   session (text): session id
--   from_ns, until_ns (ns, common clock): the range; NULL: no bound
-- Columns:
--   attempt, rank, device: whose
--   host_uid, host_name, pid: where it ran
--   offset_ns (ns): add to the host's times to get the common clock
--   started_ns, ended_ns (ns, common clock): of the process
--   seq_first, seq_last: first and last position in the range
--   first_ns, last_ns (ns, common clock): their times
--   num_events: how many
--   peak_bytes (bytes): the highest requested bytes after one of them, or just before the first
--   num_streams, num_components: how many different ones they have
SELECT
    e.attempt,
    e.rank,
    e.device,
    any_value(s.host_uid) AS host_uid,
    coalesce(any_value(h.host_name), any_value(s.host_uid), 'unknown') AS host_name,
    any_value(r.pid) AS pid,
    coalesce(any_value(s.offset_ns), 0) AS offset_ns,
    any_value(s.started_ns) AS started_ns,
    any_value(s.ended_ns) AS ended_ns,
    min(e.seq) AS seq_first,
    max(e.seq) AS seq_last,
    min(e.time_ns + coalesce(s.offset_ns, 0)) AS first_ns,
    max(e.time_ns + coalesce(s.offset_ns, 0)) AS last_ns,
    count(*) AS num_events,
    greatest(
        max(e.requested_bytes),
        arg_min(e.requested_bytes + CASE e.action WHEN 'free_completed' THEN e.size_bytes ELSE 0 END, e.seq)
    ) AS peak_bytes,
    count(DISTINCT e.stream) AS num_streams,
    count(DISTINCT e.component) AS num_components
FROM memory_event AS e
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
LEFT JOIN rank_info AS r USING (session_id, attempt, rank)
LEFT JOIN host_info AS h ON h.host_uid = s.host_uid
WHERE e.session_id = $session
    AND ($from_ns::BIGINT IS NULL OR e.time_ns + coalesce(s.offset_ns, 0) >= $from_ns)
    AND ($until_ns::BIGINT IS NULL OR e.time_ns + coalesce(s.offset_ns, 0) <= $until_ns)
GROUP BY e.attempt, e.rank, e.device
ORDER BY e.rank, e.attempt, e.device;
