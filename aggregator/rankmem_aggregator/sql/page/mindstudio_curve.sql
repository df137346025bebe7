-- Question: What does MindStudio's Memory view show of a rank, grouped as Overall, Stream or Component?
-- Parameters:
--   session (text): session id
--   rank (count): global rank
--   by (text): overall, stream or component
--   from_ms, until_ms (ms from the start of the session): the range; what a curve held when it began is kept
-- Columns:
--   legend: name of the curve, as MindStudio writes it
--   time_ms (ms): from the start of the session
--   mb (MB of 1024 * 1024 bytes): its value
WITH course AS (
    SELECT time_ms, legend, mb FROM mindstudio.overall_curve($session, $rank) WHERE $by = 'overall'
    UNION ALL
    SELECT time_ms, legend, mb FROM mindstudio.stream_curve($session, $rank) WHERE $by = 'stream'
    UNION ALL
    SELECT time_ms, legend, mb FROM mindstudio.component_curve($session, $rank) WHERE $by = 'component'
)
SELECT legend, time_ms, mb
FROM course
WHERE time_ms <= $until_ms
    AND time_ms >= coalesce(
        (SELECT max(e.time_ms) FROM course AS e WHERE e.legend = course.legend AND e.time_ms <= $from_ms), $from_ms
    )
ORDER BY legend, time_ms, mb;
