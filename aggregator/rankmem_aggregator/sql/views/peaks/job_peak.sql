-- Question: At which instant did the sum over all ranks stand highest, and what was each rank's share then? Exact.
-- Parameters:
--   of_session: session id
-- Columns:
--   device_type: the sum is over the devices of one type
--   job_peak_bytes (bytes): requested bytes of all ranks together at that instant
--   job_peak_ns (ns, common clock): the first such instant
--   job_peak_utc: the same, readable
--   attempt, rank, device: a device with its share; never of a rank without a clock (rank_span) beside others
--   host_name: its host
--   requested_bytes (bytes): its share
--   seq: the rank's event that gave it; live_at_seq has what was alive
--   clock_error_ns (ns): bound of that rank's clock offset
-- Scatter: time
CREATE OR REPLACE MACRO job_peak(of_session) AS TABLE
SELECT
    device_type,
    group_peak_bytes AS job_peak_bytes,
    group_peak_ns AS job_peak_ns,
    group_peak_utc AS job_peak_utc,
    attempt,
    rank,
    device,
    host_name,
    requested_bytes,
    seq,
    clock_error_ns
FROM group_peak(of_session, 'job')
ORDER BY device_type, requested_bytes DESC, attempt, rank, device;

COMMENT ON MACRO TABLE job_peak IS 'The instant of the highest sum over all ranks, by device type, with each rank''s share.';
