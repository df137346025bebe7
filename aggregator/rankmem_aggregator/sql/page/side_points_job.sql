-- Question: After which event of which device does a side of a comparison look, at the job's peak?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...
--   kind, value (text): of all ranks (all), of one (rank), or of those with this value of host, dp, tp, pp, cp or ep
--   shares (text): rows of job_peak where they are known; NULL: it is asked
-- Columns:
--   attempt, rank, device: which device
--   offset_ns (ns): add to its host's times to get the common clock
--   seq: the event; NULL for a range
SELECT p.attempt, p.rank, p.device, coalesce(s.offset_ns, 0) AS offset_ns, p.seq
FROM (
    SELECT attempt, rank, device, seq
    FROM (
        SELECT unnest($shares::STRUCT(
            device_type VARCHAR, job_peak_bytes BIGINT, job_peak_ns BIGINT, attempt INTEGER, rank INTEGER,
            device VARCHAR, requested_bytes BIGINT, seq BIGINT, clock_error_ns BIGINT
        )[], recursive := true)
    )
    UNION ALL
    SELECT attempt, rank, device, seq FROM job_peak($session) WHERE $shares IS NULL
) AS p
INNER JOIN rank_group($session, $kind) AS g USING (attempt, rank, device)
LEFT JOIN rank_span AS s ON s.session_id = $session AND s.attempt = p.attempt AND s.rank = p.rank
WHERE split_part(p.device, ':', 1) = $device_type
    AND ($kind = 'all' OR CASE $kind WHEN 'rank' THEN p.rank::VARCHAR ELSE g.group_name END = $value)
ORDER BY p.rank, p.attempt, p.device;
