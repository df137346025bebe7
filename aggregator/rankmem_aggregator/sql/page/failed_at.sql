-- Question: When did an allocation of a device of a rank fail?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   seq: the event that failed
-- Columns:
--   time_ns (ns, common clock): when; no row where none failed there
SELECT o.time_ns + coalesce(s.offset_ns, 0) AS time_ns
FROM oom AS o
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
WHERE o.session_id = $session AND o.attempt = $attempt AND o.rank = $rank AND o.device = $device AND o.seq = $seq
ORDER BY time_ns;
