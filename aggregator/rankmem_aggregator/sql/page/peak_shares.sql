-- Question: What did each rank hold at the instant at which all together stood highest, and how high did it get by itself?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...: the sum is over devices of this type
--   shares (text): rows of job_peak where they are known; NULL: it is asked
-- Columns:
--   attempt, rank, device: a device of a rank; of all that are in the sum, or have the rank's own peak
--   host_name: its host
--   dp, tp, pp, cp, ep: its coordinates; NULL where the rank did not report them
--   requested_bytes (bytes): its share of the job's peak; 0 where it held nothing then
--   seq: its event that gave the share; NULL where it held nothing then
--   peak_bytes (bytes): its own peak; 0 where another attempt of the rank stood higher
--   peak_ns (ns, common clock): when that was
WITH share AS MATERIALIZED (
    SELECT attempt, rank, device, requested_bytes, seq
    FROM (
        SELECT unnest($shares::STRUCT(
            device_type VARCHAR, job_peak_bytes BIGINT, job_peak_ns BIGINT, attempt INTEGER, rank INTEGER,
            device VARCHAR, requested_bytes BIGINT, seq BIGINT, clock_error_ns BIGINT
        )[], recursive := true)
        UNION ALL BY NAME
        SELECT device_type, attempt, rank, device, requested_bytes, seq FROM job_peak($session) WHERE $shares IS NULL
    )
    WHERE device_type = $device_type
),
own AS MATERIALIZED (
    SELECT p.attempt, p.rank, p.device, p.peak_requested_bytes AS peak_bytes, p.peak_time_ns AS peak_ns
    FROM peak_by_rank AS p
    INNER JOIN rank_group($session, 'job') AS g USING (attempt, rank, device)
    WHERE p.session_id = $session AND p.device_type = $device_type AND p.is_rank_peak AND g.is_summed
)
SELECT
    t.attempt,
    t.rank,
    t.device,
    coalesce(h.host_name, i.host_uid, 'unknown') AS host_name,
    i.dp,
    i.tp,
    i.pp,
    i.cp,
    i.ep,
    coalesce(s.requested_bytes, 0) AS requested_bytes,
    s.seq,
    coalesce(o.peak_bytes, 0) AS peak_bytes,
    o.peak_ns
FROM (
    SELECT attempt, rank, device FROM share
    UNION
    SELECT attempt, rank, device FROM own
) AS t
LEFT JOIN share AS s USING (attempt, rank, device)
LEFT JOIN own AS o USING (attempt, rank, device)
LEFT JOIN rank_info AS i ON i.session_id = $session AND i.attempt = t.attempt AND i.rank = t.rank
LEFT JOIN host_info AS h ON h.host_uid = i.host_uid
CROSS JOIN unstreamed
ORDER BY requested_bytes DESC, t.attempt, t.rank, t.device;
