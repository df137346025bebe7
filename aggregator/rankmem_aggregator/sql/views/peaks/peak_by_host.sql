-- Question: Which host stood highest, and which of its ranks?
-- Columns:
--   session_id: the job
--   attempt: which start of the workers
--   host_uid, host_name: the host
--   device_type: cpu, cuda, ...
--   num_ranks: ranks with events there
--   highest_rank: the rank that stood highest
--   highest_device: on this device
--   peak_requested_bytes (bytes): that rank's peak
--   peak_time_ns (ns, common clock): its instant
--   peak_time_utc: the same, readable
--   lowest_peak_bytes (bytes): peak of the rank that stayed lowest
--   sum_of_peaks_bytes (bytes): the ranks' peaks added up; a bound, for they happen at different instants
--   complete: true if every rank there is complete
-- Scatter: hosts
CREATE OR REPLACE VIEW peak_by_host AS
SELECT
    session_id,
    attempt,
    host_uid,
    host_name,
    device_type,
    count(DISTINCT rank) AS num_ranks,
    arg_max(rank, (peak_requested_bytes, -rank)) AS highest_rank,
    arg_max(device, (peak_requested_bytes, -rank)) AS highest_device,
    max(peak_requested_bytes) AS peak_requested_bytes,
    arg_max(peak_time_ns, (peak_requested_bytes, -rank)) AS peak_time_ns,
    arg_max(peak_time_utc, (peak_requested_bytes, -rank)) AS peak_time_utc,
    min(peak_requested_bytes) AS lowest_peak_bytes,
    sum(peak_requested_bytes)::BIGINT AS sum_of_peaks_bytes,
    bool_and(complete) AS complete
FROM peak_by_rank
GROUP BY session_id, attempt, host_uid, host_name, device_type;

COMMENT ON VIEW peak_by_host IS 'The highest rank of each host, attempt and device type.';
