-- Question: Which operators held each rank's memory at its own peak? Exact.
-- Parameters:
--   of_session: session id
-- Columns:
--   attempt, rank, device, device_type: whose, on the attempt with the rank's highest peak
--   operator: the operator call that allocated; NULL outside of calls, before the recording for older blocks
--   live_bytes_at_peak (bytes): of its blocks alive at the peak
--   live_allocations_at_peak: how many
--   largest_bytes (bytes): the largest of them
-- Scatter: hosts
CREATE OR REPLACE MACRO operator_at_peak(of_session) AS TABLE
SELECT
    attempt,
    rank,
    device,
    device_type,
    group_name AS operator,
    live_bytes AS live_bytes_at_peak,
    live_allocations AS live_allocations_at_peak,
    largest_bytes
FROM held_at_points(of_session, 'operator', (
    SELECT list({attempt: attempt, rank: rank, device: device, seq: peak_seq})
    FROM peak_by_rank
    WHERE session_id = of_session AND is_rank_peak
))
ORDER BY rank, device, live_bytes_at_peak DESC, operator;

COMMENT ON MACRO TABLE operator_at_peak IS 'Bytes alive at each rank''s own peak, by operator.';
