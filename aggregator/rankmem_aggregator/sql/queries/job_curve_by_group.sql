-- Question: How did each group of blocks go up and down over time, over several or all ranks together?
-- Parameters:
--   session (text): session id
--   by (text): stream, component, category, phase, operator, module, line, step or annotation
--   device_type (text): cpu, cuda, ...
--   ranks (text): global ranks with commas between; NULL for all
--   from_ns (ns, common clock): the beginning; NULL for the first event
--   until_ns (ns, common clock): the end; NULL for the last event
--   by_second (boolean): read by the second, each rank's groups at their highest
-- Columns:
--   group_name: the group
--   time_ns (ns, common clock): of the event; the beginning, for what a group held there already
--   bytes (bytes): requested bytes of its blocks alive after it
-- Scatter: none
WITH course AS (
    SELECT coalesce(group_name, 'none') AS group_name, place, time_ns, bytes
    FROM job_curve_by_group(
        $session,
        $by,
        $device_type,
        of_ranks := string_split($ranks::VARCHAR, ',')::INTEGER[],
        by_second := $by_second::BOOLEAN
    )
)
SELECT group_name, time_ns, bytes
FROM (
    SELECT group_name, max(place) AS place, $from_ns::BIGINT AS time_ns, arg_max(bytes, place) AS bytes
    FROM course
    WHERE time_ns < $from_ns::BIGINT
    GROUP BY group_name
    UNION ALL
    SELECT group_name, place, time_ns, bytes
    FROM course
    WHERE ($from_ns::BIGINT IS NULL OR time_ns >= $from_ns)
        AND ($until_ns::BIGINT IS NULL OR time_ns <= $until_ns)
)
ORDER BY group_name, place;
