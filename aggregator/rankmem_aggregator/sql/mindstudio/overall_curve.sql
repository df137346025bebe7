-- Question: What does MindStudio's view Overall show of a rank?
-- Parameters:
--   of_session: session id
--   of_rank: global rank
-- Columns:
--   time_ms (ms): from the start of the session
--   legend: name of the curve, as MindStudio writes it; Operators Activated only where streams are known
--   mb (MB of 1024 * 1024 bytes): its value
-- Scatter: none
CREATE OR REPLACE MACRO mindstudio.overall_curve(of_session, of_rank) AS TABLE
WITH shown AS (
    SELECT
        (r.timestamp - s.started_ns) / 1e6 AS time_ms,
        i.value AS component,
        r.totalAllocated,
        r.totalActive,
        r.totalReserved,
        bool_or(r.streamPtr IS NOT NULL) OVER () AS has_streams,
        bool_and(i.value IN ('GE', 'APP', 'WORKSPACE')) OVER () AS is_graph_alone
    FROM mindstudio.MEMORY_RECORD AS r
    INNER JOIN mindstudio.text_of AS i ON i.id = r.component
    INNER JOIN session_facts AS s ON s.session_id = r.sessionId
    WHERE r.sessionId = of_session
        AND s.session_id = of_session
        AND r.rankId = of_rank
        AND i.value <> 'PTA'
)
SELECT time_ms, legend, mb
FROM (
    SELECT
        time_ms,
        unnest(
            CASE
                WHEN component = 'APP' THEN [{legend: 'App Reserved', mb: totalReserved / 1048576}]
                WHEN component = 'WORKSPACE' THEN [
                    {legend: 'Workspace Allocated', mb: totalAllocated / 1048576},
                    {legend: 'Workspace Reserved', mb: totalReserved / 1048576}
                ]
                WHEN component IN ('PTA+GE', 'MindSpore+GE') OR (component = 'GE' AND is_graph_alone) THEN [
                    {legend: 'Operators Allocated', mb: totalAllocated / 1048576},
                    {legend: 'Operators Activated', mb: CASE WHEN has_streams THEN totalActive / 1048576 END},
                    {legend: 'Operators Reserved', mb: totalReserved / 1048576}
                ]
            END,
            recursive := true
        )
    FROM shown
)
WHERE mb IS NOT NULL
ORDER BY time_ms, legend;

COMMENT ON MACRO TABLE mindstudio.overall_curve IS 'MindStudio''s group-by Overall: operators allocated, activated, reserved, the process, the workspace.';
