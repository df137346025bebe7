-- Question: What did the ranks hold at the instant at which all together stood highest, by ranks and within by blocks?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...: the sum is over devices of this type
--   of (text): a bar is a rank, host, dp, tp, pp, cp or ep; or job: all together
--   by (text): operator, module, line, category, phase, step, annotation, stream or component
--   most_groups (count): groups of blocks told apart, those that hold the most of all; the others are one
--   shares (text): rows of job_peak where they are known; NULL: it is asked
-- Columns:
--   of_name: host name, rank or coordinate; NULL for job and where it is not known
--   is_rest: true in the row of the other groups
--   group_name: the group of blocks; NULL for blocks without one, and in the row of the others
--   live_bytes (bytes): of its blocks alive then; of one device type these add up to the job's peak
--   live_allocations: how many
--   largest_bytes (bytes): the largest of them
--   num_ranks: ranks that held some
WITH share AS MATERIALIZED (
    SELECT attempt, rank, device, seq
    FROM (
        SELECT unnest($shares::STRUCT(
            device_type VARCHAR, job_peak_bytes BIGINT, job_peak_ns BIGINT, attempt INTEGER, rank INTEGER,
            device VARCHAR, requested_bytes BIGINT, seq BIGINT, clock_error_ns BIGINT
        )[], recursive := true)
        UNION ALL BY NAME
        SELECT device_type, attempt, rank, device, seq FROM job_peak($session) WHERE $shares IS NULL
    )
    WHERE device_type = $device_type
),
part AS MATERIALIZED (
    SELECT attempt, rank, device, group_name, live_bytes, live_allocations, largest_bytes
    FROM held_at_points(
        $session,
        $by,
        (SELECT list({attempt: attempt, rank: rank, device: device, seq: seq}) FROM share)
    )
),
shown AS MATERIALIZED (
    SELECT group_name, true AS is_shown
    FROM part
    GROUP BY group_name
    ORDER BY sum(live_bytes) DESC, group_name
    LIMIT $most_groups
)
SELECT
    CASE WHEN $of = 'rank' THEN p.rank::VARCHAR WHEN $of <> 'job' THEN g.group_name END AS of_name,
    s.is_shown IS NULL AS is_rest,
    CASE WHEN s.is_shown THEN p.group_name END AS group_name,
    sum(p.live_bytes)::BIGINT AS live_bytes,
    sum(p.live_allocations)::BIGINT AS live_allocations,
    max(p.largest_bytes) AS largest_bytes,
    count(DISTINCT p.rank) AS num_ranks
FROM part AS p
LEFT JOIN shown AS s ON s.group_name IS NOT DISTINCT FROM p.group_name
LEFT JOIN rank_group($session, $of) AS g USING (attempt, rank, device)
CROSS JOIN unstreamed
GROUP BY ALL
ORDER BY of_name, is_rest, live_bytes DESC, group_name;
