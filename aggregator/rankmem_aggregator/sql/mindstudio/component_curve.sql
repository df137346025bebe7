-- Question: What does MindStudio's view Component show of a rank?
-- Parameters:
--   of_session: session id
--   of_rank: global rank
-- Columns:
--   time_ms (ms): from the start of the session
--   legend: name of the curve, as MindStudio writes it
--   mb (MB of 1024 * 1024 bytes): its value
CREATE OR REPLACE MACRO mindstudio.component_curve(of_session, of_rank) AS TABLE
WITH start AS (
    SELECT started_ns FROM session_overview WHERE session_id = of_session
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
    FROM (
        SELECT *, CASE group_name WHEN 'pytorch' THEN 'PTA' ELSE group_name END AS name
        FROM allocator_curve(of_session, of_rank, 'component')
    ) AS t
    CROSS JOIN start AS s
    WHERE t.time_ns IS NOT NULL
    UNION ALL
    SELECT (a.time_ns - s.started_ns) / 1e6, 'App Reserved', a.app_reserved_bytes / 1048576
    FROM app_curve AS a
    CROSS JOIN start AS s
    WHERE a.session_id = of_session AND a.rank = of_rank AND a.app_reserved_bytes IS NOT NULL
)
ORDER BY time_ms, legend;

COMMENT ON MACRO TABLE mindstudio.component_curve IS 'MindStudio''s group-by Component: the framework''s allocator (PTA), our other components, and the process.';
