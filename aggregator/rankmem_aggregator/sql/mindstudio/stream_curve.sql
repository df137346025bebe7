-- Question: What does MindStudio's view Stream show of a rank?
-- Parameters:
--   of_session: session id
--   of_rank: global rank
-- Columns:
--   time_ms (ms): from the start of the session
--   legend: name of the curve, as MindStudio writes it
--   mb (MB of 1024 * 1024 bytes): its value
CREATE OR REPLACE MACRO mindstudio.stream_curve(of_session, of_rank) AS TABLE
SELECT time_ms, legend, mb
FROM (
    SELECT
        (t.time_ns - s.started_ns) / 1e6 AS time_ms,
        unnest([
            {legend: 'Allocated of ' || t.group_name, mb: t.allocated_bytes / 1048576},
            {legend: 'Activated of ' || t.group_name, mb: t.active_bytes / 1048576},
            {legend: 'Reserved of ' || t.group_name, mb: t.reserved_bytes / 1048576}
        ], recursive := true)
    FROM allocator_curve(of_session, of_rank, 'stream') AS t
    CROSS JOIN (SELECT started_ns FROM session_overview WHERE session_id = of_session) AS s
    WHERE t.group_name IS NOT NULL AND t.time_ns IS NOT NULL
)
ORDER BY time_ms, legend;

COMMENT ON MACRO TABLE mindstudio.stream_curve IS 'MindStudio''s group-by Stream, with each stream''s own totals; nothing where there are no streams.';
