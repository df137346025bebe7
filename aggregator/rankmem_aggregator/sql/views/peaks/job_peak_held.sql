-- Question: What held the memory of the job at the instant of its peak? Exact.
-- Parameters:
--   of_session: session id
--   of_group: operator, module, line, category, phase, step, annotation, stream or component
--   of_shares: rows of job_peak where they are known, so that it is not asked again, as a list of {device_type,
--     job_peak_bytes, job_peak_ns, attempt, rank, device, requested_bytes, seq, clock_error_ns} or the text of one;
--     NULL, the default, asks
-- Columns:
--   device_type: the peak is over the devices of one type
--   group_name: the group; NULL for blocks without one
--   live_bytes (bytes): of its blocks alive then, on all ranks; over all groups these add up to the job's peak
--   live_allocations: how many
--   largest_bytes (bytes): the largest of them
--   num_ranks: ranks that held some
-- Scatter: time
CREATE OR REPLACE MACRO job_peak_held(of_session, of_group, of_shares := NULL) AS TABLE
SELECT
    device_type,
    group_name,
    sum(live_bytes)::BIGINT AS live_bytes,
    sum(live_allocations)::BIGINT AS live_allocations,
    max(largest_bytes) AS largest_bytes,
    count(DISTINCT rank) AS num_ranks
FROM held_at_points(
    of_session,
    of_group,
    (
        SELECT list({attempt: attempt, rank: rank, device: device, seq: seq})
        FROM (
            SELECT s.attempt, s.rank, s.device, s.seq
            FROM (SELECT unnest(of_shares::STRUCT(
                device_type VARCHAR, job_peak_bytes BIGINT, job_peak_ns BIGINT, attempt INTEGER, rank INTEGER,
                device VARCHAR, requested_bytes BIGINT, seq BIGINT, clock_error_ns BIGINT
            )[]) AS s)
            UNION ALL
            SELECT attempt, rank, device, seq FROM job_peak(of_session) WHERE of_shares IS NULL
        )
    )
)
GROUP BY device_type, group_name
ORDER BY device_type, live_bytes DESC, group_name;

COMMENT ON MACRO TABLE job_peak_held IS 'What held the job''s memory at the instant of its peak, by any grouping of blocks.';
