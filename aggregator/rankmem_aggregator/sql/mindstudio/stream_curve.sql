-- Question: What does MindStudio's view Stream show of a rank?
-- Parameters:
--   of_session: session id
--   of_rank: global rank
-- Columns:
--   time_ms (ms): from the start of the session
--   legend: name of the curve, as MindStudio writes it
--   mb (MB of 1024 * 1024 bytes): the device's totals at a record of the stream; a stream's own are in
--     allocator_curve(of_session, of_rank, 'stream')
-- Scatter: none
CREATE OR REPLACE MACRO mindstudio.stream_curve(of_session, of_rank) AS TABLE
SELECT time_ms, legend, mb
FROM (
    SELECT
        (r.timestamp - s.started_ns) / 1e6 AS time_ms,
        unnest([
            {legend: 'Allocated of ' || r.streamPtr, mb: r.totalAllocated / 1048576},
            {legend: 'Activated of ' || r.streamPtr, mb: r.totalActive / 1048576},
            {legend: 'Reserved of ' || r.streamPtr, mb: r.totalReserved / 1048576}
        ], recursive := true)
    FROM mindstudio.MEMORY_RECORD AS r
    INNER JOIN session_facts AS s ON s.session_id = r.sessionId
    WHERE r.sessionId = of_session
        AND s.session_id = of_session
        AND r.rankId = of_rank
        AND r.component = mindstudio.id_of('PTA+GE')
        AND r.streamPtr IS NOT NULL
)
WHERE mb IS NOT NULL
ORDER BY time_ms, legend;

COMMENT ON MACRO TABLE mindstudio.stream_curve IS 'MindStudio''s group-by Stream: the device''s totals at the records of each stream; nothing where there are no streams.';
