-- Question: How high did each rank stand in each of many equal intervals of time, on devices of one type?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...
--   from_ns, until_ns (ns, common clock): the range
--   num_bins: number of intervals
-- Columns:
--   rank: global rank
--   bin: the interval, from 0
--   peak_bytes (bytes): highest requested bytes known in it, of one device
--   last_bytes (bytes): the last known
SELECT
    b.rank,
    ((b.requested_peak_ns + coalesce(s.offset_ns, 0) - $from_ns) * $num_bins // ($until_ns - $from_ns + 1))::INTEGER AS bin,
    max(b.requested_peak_bytes) AS peak_bytes,
    arg_max(b.requested_last_bytes, b.seq_last) AS last_bytes
FROM memory_bucket AS b
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
WHERE b.session_id = $session
    AND split_part(b.device, ':', 1) = $device_type
    AND b.requested_peak_ns + coalesce(s.offset_ns, 0) BETWEEN $from_ns AND $until_ns
GROUP BY b.rank, bin
ORDER BY b.rank, bin;
