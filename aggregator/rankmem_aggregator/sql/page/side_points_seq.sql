-- Question: After which event of which device does a side of a comparison look, after an event of a rank?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...
--   kind, value (text): of all ranks (all), of one (rank), or of those with this value of host, dp, tp, pp, cp or ep
--   first: seq of the event, in the attempt in which the device stood highest; of each device the last until then
-- Columns:
--   attempt, rank, device: which device
--   offset_ns (ns): add to its host's times to get the common clock
--   seq: the event; NULL for a range
SELECT p.attempt, p.rank, p.device, coalesce(s.offset_ns, 0) AS offset_ns, p.seq
FROM (
    SELECT e.attempt, e.rank, e.device, max(e.seq) AS seq
    FROM memory_event AS e
    INNER JOIN peak_by_rank AS h USING (session_id, attempt, rank, device)
    WHERE e.session_id = $session AND e.seq <= $first AND e.rank::VARCHAR = $value AND h.is_rank_peak
    GROUP BY e.attempt, e.rank, e.device
) AS p
INNER JOIN rank_group($session, $kind) AS g USING (attempt, rank, device)
LEFT JOIN rank_span AS s ON s.session_id = $session AND s.attempt = p.attempt AND s.rank = p.rank
WHERE split_part(p.device, ':', 1) = $device_type
    AND ($kind = 'all' OR CASE $kind WHEN 'rank' THEN p.rank::VARCHAR ELSE g.group_name END = $value)
ORDER BY p.rank, p.attempt, p.device;
