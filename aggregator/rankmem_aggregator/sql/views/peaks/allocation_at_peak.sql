-- Question: What did each rank allocate, and which of it was alive at that rank's own peak? Exact.
-- Parameters:
--   of_session: session id
-- Columns:
--   all columns of the view allocation, of each rank's attempt with its highest peak
--   device_type: cpu, cuda, ...
--   alive_at_peak: true if it was alive right after the event at which its rank and device stood highest
--   peak_time_ns (ns, common clock): that rank's peak
-- Scatter: hosts
CREATE OR REPLACE MACRO allocation_at_peak(of_session) AS TABLE
SELECT
    a.*,
    p.device_type,
    p.peak_time_ns,
    a.allocation_id <= p.peak_seq AND (a.freed_seq IS NULL OR a.freed_seq > p.peak_seq) AS alive_at_peak
FROM allocation AS a
INNER JOIN peak_by_rank AS p USING (session_id, attempt, rank, device)
WHERE a.session_id = of_session AND p.session_id = of_session AND p.is_rank_peak;

COMMENT ON MACRO TABLE allocation_at_peak IS 'Blocks of each rank''s highest attempt, marked if alive at its peak.';
