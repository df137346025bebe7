-- Question: Which rows of memory_bucket are in the ranges that are to become cells of memory_level?
-- Columns:
--   number: of the rank in summary_due
--   device, bucket_ns, seq_first, seq_last, first_ns, last_ns, events: as in memory_bucket
--   peak_bytes, peak_ns, peak_seq, last_bytes: of the requested bytes
--   allocated_peak_bytes, active_peak_bytes, reserved_peak_bytes: as there
--   allocated_last_bytes, active_last_bytes, reserved_last_bytes: as there
-- In any order: the reader sorts.
SELECT
    d.number,
    b.device,
    b.bucket_ns,
    b.seq_first,
    b.seq_last,
    b.first_ns,
    b.last_ns,
    b.events,
    b.requested_peak_bytes AS peak_bytes,
    b.requested_peak_ns AS peak_ns,
    b.requested_peak_seq AS peak_seq,
    b.requested_last_bytes AS last_bytes,
    b.allocated_peak_bytes,
    b.active_peak_bytes,
    b.reserved_peak_bytes,
    b.allocated_last_bytes,
    b.active_last_bytes,
    b.reserved_last_bytes
FROM memory_bucket AS b
INNER JOIN summary_due AS d USING (session_id, attempt, rank)
WHERE b.seq_first > d.seq_from
    AND b.seq_first <= d.seq_upto
    -- Again for all ranks together: most of the file is passed over.
    AND b.seq_first > (SELECT min(seq_from) FROM summary_due)
    AND b.seq_first <= (SELECT max(seq_upto) FROM summary_due);
