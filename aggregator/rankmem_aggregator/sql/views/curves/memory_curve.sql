-- Question: How did a rank's memory go up and down over time?
-- Parameters:
--   of_session: session id
--   of_rank: global rank
--   of_attempt: which start of the workers; NULL, the default, for all
-- Columns:
--   attempt: which start of the workers
--   device: device type and index
--   bucket_ns (ns, common clock): start of the second
--   bucket_utc: the same, readable
--   requested_peak_bytes, requested_last_bytes (bytes): highest and last requested bytes in that second
--   allocated_peak_bytes, active_peak_bytes, reserved_peak_bytes (bytes): the allocator's own; on cpu the requested
--   events: in that second; a second without events has no row, and the last value holds
-- Scatter: none
CREATE OR REPLACE MACRO memory_curve(of_session, of_rank, of_attempt := NULL) AS TABLE
WITH bucket AS (
    SELECT *, CASE WHEN split_part(device, ':', 1) = 'cpu' THEN requested_peak_bytes END AS cpu_bytes
    FROM memory_bucket
    WHERE session_id = of_session AND rank = of_rank AND (of_attempt IS NULL OR attempt = of_attempt)
)
SELECT
    b.attempt,
    b.device,
    b.bucket_ns + coalesce(s.offset_ns, 0) AS bucket_ns,
    utc_of(b.bucket_ns + coalesce(s.offset_ns, 0)) AS bucket_utc,
    max(b.requested_peak_bytes) AS requested_peak_bytes,
    arg_max(b.requested_last_bytes, b.seq_last) AS requested_last_bytes,
    max(coalesce(b.allocated_peak_bytes, b.cpu_bytes)) AS allocated_peak_bytes,
    max(coalesce(b.active_peak_bytes, b.cpu_bytes)) AS active_peak_bytes,
    max(coalesce(b.reserved_peak_bytes, b.cpu_bytes)) AS reserved_peak_bytes,
    sum(b.events)::BIGINT AS events
FROM bucket AS b
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
GROUP BY b.attempt, b.device, b.bucket_ns, s.offset_ns
ORDER BY b.device, b.attempt, b.bucket_ns;

COMMENT ON MACRO TABLE memory_curve IS 'A rank''s memory second by second: highest and last totals.';
