-- Question: How high did each rank get on each device, when exactly, and is the answer complete?
-- Columns:
--   session_id: the job
--   attempt: which start of the workers
--   rank: global rank
--   local_rank: rank within its host
--   host_uid, host_name: its host
--   device: device type and index
--   device_type: cpu, cuda, ...
--   device_name: product name
--   peak_requested_bytes (bytes): highest requested bytes after an event; exact where complete, else see peak_bound
--   peak_time_ns (ns, common clock): the first instant at which it stood so high
--   peak_time_utc: the same, readable
--   peak_seq: the event after which it did; live_at_seq has what was alive then
--   peak_allocated_bytes (bytes): highest allocated bytes, the allocator's own figure; on cpu the requested
--   peak_active_bytes (bytes): the same of active bytes
--   peak_reserved_bytes (bytes): the same of reserved bytes
--   device_total_bytes (bytes): memory of the device
--   events: allocator events on that device
--   complete: true if no event of the rank is missing and the replay equals the allocator's counter
--   is_rank_peak: true on the attempt in which this rank and device stood highest (the latest among equals)
-- Scatter: hosts
CREATE OR REPLACE VIEW peak_by_rank AS
WITH top AS (
    SELECT
        session_id,
        attempt,
        rank,
        device,
        max(peak_bytes) AS peak_requested_bytes,
        arg_max(peak_ns, (peak_bytes, -peak_seq)) AS peak_time_ns,
        arg_max(peak_seq, (peak_bytes, -peak_seq)) AS peak_seq,
        max(allocated_peak_bytes) AS peak_allocated_bytes,
        max(active_peak_bytes) AS peak_active_bytes,
        max(reserved_peak_bytes) AS peak_reserved_bytes,
        sum(events)::BIGINT AS events
    FROM memory_cell(NULL, 1024)
    GROUP BY ALL
),
typed AS (
    -- On cpu there is one figure: the allocator has no counters of its own.
    SELECT
        *,
        split_part(device, ':', 1) AS device_type,
        CASE WHEN device_type = 'cpu' THEN peak_requested_bytes END AS cpu_bytes
    FROM top
)
SELECT
    t.session_id,
    t.attempt,
    t.rank,
    r.local_rank,
    r.host_uid,
    h.host_name,
    t.device,
    t.device_type,
    d.name AS device_name,
    t.peak_requested_bytes,
    t.peak_time_ns + coalesce(s.offset_ns, 0) AS peak_time_ns,
    utc_of(t.peak_time_ns + coalesce(s.offset_ns, 0)) AS peak_time_utc,
    t.peak_seq,
    coalesce(t.peak_allocated_bytes, t.cpu_bytes) AS peak_allocated_bytes,
    coalesce(t.peak_active_bytes, t.cpu_bytes) AS peak_active_bytes,
    coalesce(t.peak_reserved_bytes, t.cpu_bytes) AS peak_reserved_bytes,
    d.total_bytes AS device_total_bytes,
    t.events,
    -- As in rank_loss, which would be asked once more in every answer about a peak.
    coalesce(r.complete, false) AND g.rank IS NULL AND NOT (r.end_reason IS NULL AND s.ended_ns IS NOT NULL)
        AS complete,
    row_number() OVER (
        PARTITION BY t.session_id, t.rank, t.device ORDER BY t.peak_requested_bytes DESC, t.attempt DESC
    ) = 1 AS is_rank_peak
FROM typed AS t
LEFT JOIN rank_info AS r USING (session_id, attempt, rank)
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
LEFT JOIN (SELECT DISTINCT session_id, attempt, rank FROM gap WHERE why <> 'hooks_off') AS g
    USING (session_id, attempt, rank)
LEFT JOIN host_info AS h ON r.host_uid = h.host_uid
LEFT JOIN device_info AS d USING (session_id, attempt, rank, device);

COMMENT ON VIEW peak_by_rank IS 'The high-water mark of each rank, attempt and device, its exact instant and event.';
