-- Question: What does MindStudio's view Component show of a rank?
-- Parameters:
--   of_session: session id
--   of_rank: global rank
-- Columns:
--   time_ms (ms): from the start of the session
--   legend: name of the curve, as MindStudio writes it; other components of ours likewise
--   mb (MB of 1024 * 1024 bytes): its value
-- Scatter: none
CREATE OR REPLACE MACRO mindstudio.component_curve(of_session, of_rank) AS TABLE
WITH start AS (
    SELECT started_ns FROM session_facts WHERE session_id = of_session
),
-- Imported recordings have the totals of components; in our own logs they are those of the components' blocks.
course AS (
    SELECT time_ns, CASE group_name WHEN 'pytorch' THEN 'PTA' ELSE group_name END AS name,
        allocated_bytes, active_bytes, reserved_bytes
    FROM allocator_curve(of_session, of_rank, 'component')
    WHERE time_ns IS NOT NULL AND split_part(device, ':', 1) <> 'npu'
    UNION ALL
    SELECT time_ns, component, allocated_bytes, active_bytes, reserved_bytes
    FROM mindstudio.component_total
    WHERE session_id = of_session
        AND rank = of_rank
        AND component IN ('PTA', 'GE')
        AND split_part(device, ':', 1) = 'npu'
)
SELECT time_ms, legend, mb
FROM (
    SELECT
        (t.time_ns - s.started_ns) / 1e6 AS time_ms,
        unnest([
            {legend: t.name || ' Allocated', mb: t.allocated_bytes / 1048576},
            {legend: t.name || ' Activated', mb: t.active_bytes / 1048576},
            {legend: t.name || ' Reserved', mb: t.reserved_bytes / 1048576}
        ], recursive := true)
    FROM course AS t
    CROSS JOIN start AS s
    UNION ALL
    SELECT (a.time_ns - s.started_ns) / 1e6, 'App Reserved', a.app_reserved_bytes / 1048576
    FROM app_curve AS a
    CROSS JOIN start AS s
    WHERE a.session_id = of_session AND a.rank = of_rank AND a.app_reserved_bytes IS NOT NULL
)
WHERE mb IS NOT NULL
ORDER BY time_ms, legend;

COMMENT ON MACRO TABLE mindstudio.component_curve IS 'MindStudio''s group-by Component: the framework''s allocator (PTA), GE, our other components, and the process.';
