-- Question: Which allocations failed, the latest first?
-- Parameters:
--   session (text): session id
--   at_most (count): rows
-- Columns:
--   attempt, rank, device, seq: whose, and its position in the rank's log
--   time_ns (ns, common clock): when
--   size_bytes (bytes): what was asked for
SELECT
    o.attempt,
    o.rank,
    o.device,
    o.seq,
    o.time_ns + coalesce(s.offset_ns, 0) AS time_ns,
    o.size_bytes
FROM oom AS o
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
WHERE o.session_id = $session
ORDER BY 5 DESC, o.attempt, o.rank, o.seq
LIMIT $at_most;
