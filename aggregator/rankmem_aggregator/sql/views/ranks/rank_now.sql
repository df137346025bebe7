-- Question: What does each rank hold on each device by what is stored now, and how much could it still get?
-- Columns:
--   session_id, attempt, rank, device: who; of the last attempt of each session
--   host_name: its host
--   requested_bytes, allocated_bytes, active_bytes, reserved_bytes (bytes): the last known, as in memory_event; the
--     allocator's own are NULL on cpu
--   used_bytes (bytes): allocated where the allocator reports it, else requested; 0 once its process has ended
--   peak_requested_bytes (bytes): the highest so far
--   app_reserved_bytes (bytes): what the whole process holds, by the last sample
--   device_total_bytes, device_free_bytes (bytes): of the device, by the last sample
--   headroom_bytes (bytes): free on the device, and what the allocator holds unused; NULL where neither is known
--   last_event_ns (ns, common clock): time of its last event
--   ended_ns (ns, common clock): when it ended; NULL while it runs
-- Scatter: hosts
CREATE OR REPLACE VIEW rank_now AS
WITH newest AS (
    SELECT session_id, max(attempt) AS attempt
    FROM rank_info
    GROUP BY session_id
),
held AS (
    SELECT
        session_id,
        attempt,
        rank,
        device,
        arg_max(last_bytes, seq_last) AS requested_bytes,
        arg_max(allocated_last_bytes, seq_last) AS allocated_bytes,
        arg_max(active_last_bytes, seq_last) AS active_bytes,
        arg_max(reserved_last_bytes, seq_last) AS reserved_bytes,
        max(peak_bytes) AS peak_requested_bytes,
        max(last_ns) AS last_ns
    FROM memory_cell(NULL, 1024)
    GROUP BY ALL
),
sampled AS (
    SELECT
        session_id,
        attempt,
        rank,
        device,
        arg_max(app_reserved_bytes, seq) AS app_reserved_bytes,
        arg_max(device_total_bytes, seq) AS device_total_bytes,
        arg_max(device_free_bytes, seq) AS device_free_bytes
    FROM process_sample
    GROUP BY ALL
)
SELECT
    h.session_id,
    h.attempt,
    h.rank,
    h.device,
    i.host_name,
    h.requested_bytes,
    h.allocated_bytes,
    h.active_bytes,
    h.reserved_bytes,
    CASE WHEN s.ended_ns IS NULL THEN coalesce(h.allocated_bytes, h.requested_bytes) ELSE 0 END AS used_bytes,
    h.peak_requested_bytes,
    p.app_reserved_bytes,
    coalesce(p.device_total_bytes, d.total_bytes) AS device_total_bytes,
    p.device_free_bytes,
    coalesce(p.device_free_bytes, coalesce(p.device_total_bytes, d.total_bytes) - p.app_reserved_bytes)
    + greatest(coalesce(h.reserved_bytes - coalesce(h.active_bytes, h.allocated_bytes), 0), 0) AS headroom_bytes,
    h.last_ns + coalesce(s.offset_ns, 0) AS last_event_ns,
    s.ended_ns
FROM held AS h
INNER JOIN newest USING (session_id, attempt)
LEFT JOIN sampled AS p USING (session_id, attempt, rank, device)
LEFT JOIN device_info AS d USING (session_id, attempt, rank, device)
LEFT JOIN rank_info AS r USING (session_id, attempt, rank)
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
LEFT JOIN host_info AS i ON r.host_uid = i.host_uid;

COMMENT ON VIEW rank_now IS 'What each rank holds on each device by what is stored now, and its headroom.';
