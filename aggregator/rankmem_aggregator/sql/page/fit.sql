-- Question: How high did each rank stand, and what has its device?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...
-- Columns:
--   attempt, rank, device: a device of a rank, on the last attempt
--   host_name: its host
--   peak_bytes (bytes): highest requested bytes
--   reserved_peak_bytes (bytes): highest bytes that the allocator held from the device; NULL where not known, as on cpu
--   headroom_bytes (bytes): as in rank_now: free on the device, and held by the allocator unused, by what is stored now
--   beyond_bytes (bytes): what the process holds of the device beyond the allocator, by the last sample; NULL where it is
--     not known, as on cpu
--   device_total_bytes (bytes): memory of the device
--   step_ns (ns): how long a step takes, the median; NULL where that is not known
WITH pace AS (
    SELECT attempt, rank, median(duration_ns)::BIGINT AS step_ns
    FROM (
        SELECT attempt, rank, ended_ns - lag(ended_ns) OVER (PARTITION BY attempt, rank ORDER BY seq) AS duration_ns
        FROM (
            SELECT attempt, rank, step, max(seq) AS seq, max(ended_ns) AS ended_ns
            FROM step
            WHERE session_id = $session
            GROUP BY attempt, rank, step
        )
    )
    GROUP BY attempt, rank
)
SELECT
    n.attempt,
    n.rank,
    n.device,
    coalesce(n.host_name, p.host_uid, 'unknown') AS host_name,
    p.peak_requested_bytes AS peak_bytes,
    CASE WHEN p.device_type <> 'cpu' THEN nullif(p.peak_reserved_bytes, 0) END AS reserved_peak_bytes,
    n.headroom_bytes,
    -- A NULL would count as nothing in greatest.
    CASE WHEN p.device_type <> 'cpu' AND n.reserved_bytes > 0 AND n.app_reserved_bytes IS NOT NULL
        THEN greatest(n.app_reserved_bytes - n.reserved_bytes, 0) END AS beyond_bytes,
    n.device_total_bytes,
    t.step_ns
FROM rank_now AS n
INNER JOIN peak_by_rank AS p USING (session_id, attempt, rank, device)
LEFT JOIN pace AS t USING (attempt, rank)
CROSS JOIN unstreamed
WHERE n.session_id = $session AND p.device_type = $device_type
ORDER BY n.rank, n.device;
