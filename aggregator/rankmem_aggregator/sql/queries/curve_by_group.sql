-- Question: How did each group of a rank's blocks go up and down, event by event or by the highest of each range of its log?
-- Parameters:
--   session (text): session id
--   attempt (count): which start of the workers
--   rank (count): global rank
--   device (text): device type and index; pinned host memory comes along where by is component
--   by (text): stream, component, category, phase, operator, module, line, step or annotation
--   from_ns (ns, common clock): the beginning; NULL for the rank's own
--   until_ns (ns, common clock): the end; NULL for the rank's own
--   first_ns (ns, common clock): where blocks older than the recording stand
--   coarse (boolean): by ranges, see the macro group_course; of stream, component, category and phase alone
-- Columns:
--   group_name: the group
--   time_ns (ns, common clock): of the event; the beginning, for what a group held there already
--   bytes (bytes): requested bytes of its blocks alive after it
-- Scatter: none
WITH course AS (
    SELECT coalesce(group_name, 'none') AS group_name, seq, coalesce(time_ns, $first_ns) AS time_ns, bytes
    FROM (
        SELECT device, group_name, seq, time_ns, bytes
        FROM curve_by_group($session, $rank, $by, of_attempt := $attempt)
        WHERE NOT $coarse::BOOLEAN
        UNION ALL
        SELECT device, group_name, seq, time_ns, bytes
        FROM group_course($session, $by, of_rank := $rank::INTEGER, of_attempt := $attempt::INTEGER)
        WHERE $coarse::BOOLEAN
    )
    WHERE device = $device OR ($by = 'component' AND device = 'pinned' AND group_name = 'pinned_host')
)
SELECT group_name, time_ns, bytes
FROM (
    SELECT group_name, max(seq) AS seq, $from_ns::BIGINT AS time_ns, arg_max(bytes, seq) AS bytes
    FROM course
    WHERE time_ns < $from_ns::BIGINT
    GROUP BY group_name
    UNION ALL
    SELECT group_name, seq, time_ns, bytes
    FROM course
    WHERE ($from_ns::BIGINT IS NULL OR time_ns >= $from_ns)
        AND ($until_ns::BIGINT IS NULL OR time_ns <= $until_ns)
)
ORDER BY group_name, seq, time_ns;
