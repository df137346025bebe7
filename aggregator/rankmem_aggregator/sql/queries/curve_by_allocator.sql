-- Question: How did the bytes of each stream or component of a rank go up and down: allocated, active and reserved?
-- Parameters:
--   session (text): session id
--   attempt (count): which start of the workers
--   rank (count): global rank
--   device (text): device type and index; pinned host memory comes along where by is component
--   by (text): stream or component
--   from_ns (ns, common clock): the beginning; NULL for the rank's own
--   until_ns (ns, common clock): the end; NULL for the rank's own
--   first_ns (ns, common clock): where blocks older than the recording stand
-- Columns:
--   group_name: the group, the one that held the most first
--   time_ns (ns, common clock): of the event; the beginning, for what a group held there already
--   allocated, active, reserved (bytes): after it
-- Scatter: none
WITH course AS (
    SELECT
        coalesce(group_name, 'none') AS group_name,
        seq,
        coalesce(time_ns, $first_ns) AS time_ns,
        allocated_bytes AS allocated,
        active_bytes AS active,
        reserved_bytes AS reserved
    FROM allocator_curve($session, $rank, $by, of_attempt := $attempt)
    WHERE device = $device OR ($by = 'component' AND device = 'pinned' AND group_name = 'pinned_host')
),
part AS (
    SELECT
        group_name,
        max(seq) AS seq,
        $from_ns::BIGINT AS time_ns,
        arg_max(allocated, seq) AS allocated,
        arg_max(active, seq) AS active,
        arg_max(reserved, seq) AS reserved
    FROM course
    WHERE time_ns < $from_ns::BIGINT
    GROUP BY group_name
    UNION ALL
    SELECT group_name, seq, time_ns, allocated, active, reserved
    FROM course
    WHERE ($from_ns::BIGINT IS NULL OR time_ns >= $from_ns)
        AND ($until_ns::BIGINT IS NULL OR time_ns <= $until_ns)
)
SELECT group_name, time_ns, allocated, active, reserved
FROM part
ORDER BY max(greatest(active, reserved)) OVER (PARTITION BY group_name) DESC, group_name, seq, time_ns;
