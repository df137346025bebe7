-- Question: After which event of which device does a side of a comparison look, after an event of a rank?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...
--   kind, value (text): of all ranks (all), of one (rank), or of those with this value of host, dp, tp, pp, cp or ep
--   first: seq of the event; of the last attempt that has it
-- Columns:
--   attempt, rank, device: which device
--   offset_ns (ns): add to its host's times to get the common clock
--   seq: the event; NULL for a range
SELECT p.attempt, p.rank, p.device, coalesce(s.offset_ns, 0) AS offset_ns, p.seq
FROM (
    SELECT attempt, rank, device, seq
    FROM memory_event
    WHERE session_id = $session AND seq = $first AND rank::VARCHAR = $value
    QUALIFY attempt = max(attempt) OVER ()
) AS p
INNER JOIN rank_group($session, $kind) AS g USING (attempt, rank, device)
LEFT JOIN rank_span AS s ON s.session_id = $session AND s.attempt = p.attempt AND s.rank = p.rank
WHERE split_part(p.device, ':', 1) = $device_type
    AND ($kind = 'all' OR CASE $kind WHEN 'rank' THEN p.rank::VARCHAR ELSE g.group_name END = $value)
ORDER BY p.rank, p.attempt, p.device;
