-- Question: How did each group of blocks go up and down over time, over several or all ranks together? Exact.
-- Parameters:
--   of_session: session id
--   of_group: stream, component, category, phase, operator, module, line, step or annotation
--   of_device_type: cpu, cuda, ...: the sums are over the devices of one type
--   of_ranks: list of global ranks; NULL, the default, for all (reads every block of these ranks)
--   by_second: true: from group_bucket, every rank's group at its highest of each second; of stream, component, category
--     and phase alone. Quick, but the ranks do not stand highest at the same instant: the sum may lie above what it reached
-- Columns:
--   group_name: the group; NULL for blocks without one. Of category: what the bytes meant at the time
--   place: position in its course, from 1
--   time_ns (ns, common clock): of the event; of blocks older than the recording their rank's start. The bytes of a
--     process are gone when it ends
--   bytes (bytes): requested bytes of the group's blocks alive after it, on all of these ranks
-- Scatter: none
CREATE OR REPLACE MACRO job_curve_by_group(
    of_session, of_group, of_device_type, of_ranks := NULL, by_second := false
) AS TABLE
WITH point AS (
    SELECT attempt, rank, device, group_name, seq, time_ns, change_bytes
    FROM block_change(of_session, of_group)
    WHERE NOT by_second
    UNION ALL
    SELECT
        attempt,
        rank,
        device,
        group_name,
        seq,
        time_ns,
        bytes - lag(bytes, 1, 0) OVER (PARTITION BY attempt, rank, device, group_name ORDER BY seq)
    FROM (
        SELECT
            attempt,
            rank,
            device,
            group_name,
            max(seq) AS seq,
            arg_max(time_ns, (bytes, -seq)) AS time_ns,
            max(bytes) AS bytes
        FROM group_course(of_session, of_group)
        WHERE by_second
        GROUP BY attempt, rank, device, group_name, time_ns // 1000000000
    )
),
timed AS (
    SELECT
        b.attempt,
        b.rank,
        b.group_name,
        b.seq,
        b.change_bytes,
        coalesce(b.time_ns, s.started_ns) AS time_ns,
        s.ended_ns
    FROM point AS b
    LEFT JOIN rank_span AS s ON s.session_id = of_session AND s.attempt = b.attempt AND s.rank = b.rank
    INNER JOIN rank_group(of_session, 'job') AS g
        ON g.attempt = b.attempt AND g.rank = b.rank AND g.device = b.device AND g.is_summed
    WHERE split_part(b.device, ':', 1) = of_device_type AND (of_ranks IS NULL OR list_contains(of_ranks, b.rank))
),
change AS (
    SELECT group_name, attempt, rank, seq, time_ns, change_bytes FROM timed
    UNION ALL
    SELECT group_name, attempt, rank, 9223372036854775807, greatest(max(ended_ns), max(time_ns)), -sum(change_bytes)
    FROM timed
    WHERE ended_ns IS NOT NULL
    GROUP BY group_name, attempt, rank
    HAVING sum(change_bytes) <> 0
)
SELECT
    group_name,
    row_number() OVER life AS place,
    time_ns,
    (sum(change_bytes) OVER life)::BIGINT AS bytes
FROM change
WINDOW life AS (
    -- Within one event what goes comes first.
    PARTITION BY group_name ORDER BY time_ns, attempt, rank, seq, change_bytes
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
)
ORDER BY group_name, place;

COMMENT ON MACRO TABLE job_curve_by_group IS 'Bytes of each group of blocks over several or all ranks together, after every event.';
