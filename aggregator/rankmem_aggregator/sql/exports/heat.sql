-- Question: How high did each rank stand in each of many equal stretches of time, on devices of one type?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...
--   ranks (text): global ranks, separated by commas; NULL for all
--   from_ns, until_ns (ns, common clock): the range
--   num_bins: stretches
-- Columns:
--   rank: global rank
--   bin: the stretch, from 0
--   peak_bytes (bytes): the highest requested bytes that are known of one of its devices in it
--   last_bytes (bytes): the last that are known
WITH bucket AS (
    SELECT b.*, coalesce(s.offset_ns, 0) AS offset_ns
    FROM memory_bucket AS b
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
    WHERE b.session_id = $session
        AND split_part(b.device, ':', 1) = $device_type
        AND ($ranks::VARCHAR IS NULL OR list_contains(string_split($ranks, ','), b.rank::VARCHAR))
),
point AS (
    SELECT rank, requested_peak_ns + offset_ns AS time_ns, requested_peak_seq AS seq, requested_peak_bytes AS bytes
    FROM bucket
    UNION ALL
    SELECT rank, last_ns + offset_ns, seq_last, requested_last_bytes FROM bucket
)
SELECT
    rank,
    ((time_ns - $from_ns) * $num_bins // ($until_ns - $from_ns + 1))::INTEGER AS bin,
    max(bytes) AS peak_bytes,
    arg_max(bytes, (time_ns, seq)) AS last_bytes
FROM point
WHERE time_ns BETWEEN $from_ns AND $until_ns
GROUP BY rank, bin
ORDER BY rank, bin;
