-- Question: How did a device of a rank go up and down, bucket by bucket?
-- Parameters:
--   session (text): session id
--   attempt, rank, device: which device
--   from_ns, until_ns (ns, common clock): the range; buckets that touch it
-- Columns:
--   seq_first, seq_last: events of the bucket
--   peak_ns (ns, common clock), requested_peak_bytes (bytes): the first instant of its highest requested bytes, and those
--   last_ns (ns, common clock), requested_last_bytes (bytes): its last event, and what it left
--   events: in it
SELECT
    b.seq_first,
    b.seq_last,
    b.requested_peak_ns + coalesce(s.offset_ns, 0) AS peak_ns,
    b.requested_peak_bytes,
    b.last_ns + coalesce(s.offset_ns, 0) AS last_ns,
    b.requested_last_bytes,
    b.events
FROM memory_bucket AS b
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
WHERE b.session_id = $session
    AND b.attempt = $attempt
    AND b.rank = $rank
    AND b.device = $device
    AND b.last_ns + coalesce(s.offset_ns, 0) >= $from_ns
    AND b.first_ns + coalesce(s.offset_ns, 0) <= $until_ns
ORDER BY b.seq_first;
