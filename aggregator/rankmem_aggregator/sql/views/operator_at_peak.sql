-- Question: Which operators held each rank's memory at its own peak? Exact.
-- Parameters:
--   of_session: session id
-- Columns:
--   attempt, rank, device, device_type: whose, on the attempt with the rank's highest peak
--   operator: the operator call that allocated; NULL outside of calls and for blocks older than the recording
--   live_bytes_at_peak (bytes): of its blocks alive at the peak
--   live_allocations_at_peak: how many
--   largest_bytes (bytes): the largest of them
CREATE OR REPLACE MACRO operator_at_peak(of_session) AS TABLE
SELECT
    attempt,
    rank,
    device,
    device_type,
    operator,
    sum(size_bytes)::BIGINT AS live_bytes_at_peak,
    count(*) AS live_allocations_at_peak,
    max(size_bytes) AS largest_bytes
FROM allocation_at_peak(of_session)
WHERE alive_at_peak
GROUP BY attempt, rank, device, device_type, operator
ORDER BY rank, device, live_bytes_at_peak DESC, operator;

COMMENT ON MACRO TABLE operator_at_peak IS 'Bytes alive at each rank''s own peak, by operator.';
