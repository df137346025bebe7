-- Question: What does MindStudio's view Overall show of a rank?
-- Parameters:
--   of_session: session id
--   of_rank: global rank
-- Columns:
--   time_ms (ms): from the start of the session
--   legend: name of the curve, as MindStudio writes it
--   mb (MB of 1024 * 1024 bytes): its value
CREATE OR REPLACE MACRO mindstudio.overall_curve(of_session, of_rank) AS TABLE
SELECT time_ms, legend, mb
FROM (
    SELECT
        (r.timestamp - s.started_ns) / 1e6 AS time_ms,
        unnest(
            CASE WHEN r.component = mindstudio.id_of('APP')
                THEN [{legend: 'App Reserved', mb: r.totalReserved / 1048576}]
                ELSE [
                    {legend: 'Operators Allocated', mb: r.totalAllocated / 1048576},
                    {legend: 'Operators Activated', mb: r.totalActive / 1048576},
                    {legend: 'Operators Reserved', mb: r.totalReserved / 1048576}
                ] END,
            recursive := true
        )
    FROM mindstudio.MEMORY_RECORD AS r
    INNER JOIN session_overview AS s ON s.session_id = r.sessionId
    WHERE r.sessionId = of_session
        AND s.session_id = of_session
        AND r.rankId = of_rank
        AND r.component IN (mindstudio.id_of('PTA+GE'), mindstudio.id_of('APP'))
)
ORDER BY time_ms, legend;

COMMENT ON MACRO TABLE mindstudio.overall_curve IS 'MindStudio''s group-by Overall: operators allocated, activated, reserved, and the process.';
