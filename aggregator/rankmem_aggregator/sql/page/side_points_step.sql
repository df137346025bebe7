-- Question: After which event of which device does a side of a comparison look, each rank at its highest in a training step?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...
--   kind, value (text): of all ranks (all), of one (rank), or of those with this value of host, dp, tp, pp, cp or ep
--   first: the step; of each rank in the last attempt that made it
-- Columns:
--   attempt, rank, device: which device
--   offset_ns (ns): add to its host's times to get the common clock
--   seq: the event; NULL for a range
SELECT p.attempt, p.rank, p.device, coalesce(s.offset_ns, 0) AS offset_ns, p.seq
FROM (
    SELECT attempt, rank, device, arg_max(peak_seq, (peak_bytes, -peak_seq)) AS seq
    FROM step_bucket
    WHERE session_id = $session AND step = $first
    GROUP BY attempt, rank, device
    QUALIFY attempt = max(attempt) OVER (PARTITION BY rank, device)
) AS p
INNER JOIN rank_group($session, $kind) AS g USING (attempt, rank, device)
LEFT JOIN rank_span AS s ON s.session_id = $session AND s.attempt = p.attempt AND s.rank = p.rank
WHERE split_part(p.device, ':', 1) = $device_type
    AND ($kind = 'all' OR CASE $kind WHEN 'rank' THEN p.rank::VARCHAR ELSE g.group_name END = $value)
ORDER BY p.rank, p.attempt, p.device;
