-- Question: At which instant did the sum over all ranks stand highest, and what was each rank's share then? Exact.
-- Parameters:
--   of_session: session id
-- Columns:
--   device_type: the sum is over the devices of one type
--   job_peak_bytes (bytes): requested bytes of all ranks together at that instant
--   job_peak_ns (ns, common clock): the first such instant
--   job_peak_utc: the same, readable
--   attempt, rank, device: a device with its share
--   host_name: its host
--   requested_bytes (bytes): its share
--   seq: the rank's event that gave it; live_at_seq tells what was alive
--   clock_error_ns (ns): bound of that rank's clock offset
CREATE OR REPLACE MACRO job_peak(of_session) AS TABLE
WITH change AS (
    SELECT attempt, rank, device, seq, time_ns + coalesce(s.offset_ns, 0) AS time_ns, requested_bytes
    FROM memory_event AS e
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
    WHERE session_id = of_session AND requested_bytes IS NOT NULL
    UNION ALL
    SELECT b.attempt, b.rank, b.device, 9223372036854775807, greatest(s.ended_ns, max(b.last_ns) + s.offset_ns), 0
    FROM memory_bucket AS b
    INNER JOIN rank_span AS s USING (session_id, attempt, rank)
    WHERE b.session_id = of_session AND s.ended_ns IS NOT NULL
    GROUP BY b.attempt, b.rank, b.device, s.ended_ns, s.offset_ns
),
step AS (
    SELECT *, split_part(device, ':', 1) AS device_type, requested_bytes - lag(requested_bytes, 1, 0) OVER (PARTITION BY attempt, rank, device ORDER BY seq) AS delta FROM change
),
running AS (
    SELECT device_type, time_ns, attempt, rank, seq, sum(delta) OVER (PARTITION BY device_type ORDER BY time_ns, attempt, rank, seq ROWS UNBOUNDED PRECEDING)::BIGINT AS total_bytes FROM step
),
top AS (
    SELECT DISTINCT ON (device_type) * FROM running ORDER BY device_type, total_bytes DESC, time_ns, attempt, rank, seq
),
share AS (
    SELECT t.device_type, t.total_bytes, t.time_ns, c.attempt, c.rank, c.device, arg_max(c.requested_bytes, c.seq) AS requested_bytes, max(c.seq) AS seq
    FROM top AS t INNER JOIN step AS c ON t.device_type = c.device_type AND (c.time_ns, c.attempt, c.rank, c.seq) <= (t.time_ns, t.attempt, t.rank, t.seq)
    GROUP BY ALL
)
SELECT
    a.device_type,
    a.total_bytes AS job_peak_bytes,
    a.time_ns AS job_peak_ns,
    utc_of(a.time_ns) AS job_peak_utc,
    a.attempt,
    a.rank,
    a.device,
    h.host_name,
    a.requested_bytes,
    a.seq,
    s.error_ns AS clock_error_ns
FROM share AS a
LEFT JOIN rank_span AS s ON s.session_id = of_session AND s.attempt = a.attempt AND s.rank = a.rank
LEFT JOIN host_info AS h ON s.host_uid = h.host_uid
WHERE a.requested_bytes <> 0
ORDER BY a.device_type, a.requested_bytes DESC, a.attempt, a.rank, a.device;

COMMENT ON MACRO TABLE job_peak IS 'The instant of the highest sum over all ranks, by device type, with each rank''s share.';
