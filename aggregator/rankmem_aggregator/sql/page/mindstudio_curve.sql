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
),
held AS (
    SELECT legend, max(time_ms) AS from_ms
    FROM course
    WHERE time_ms <= $from_ms
    GROUP BY legend
)
SELECT c.legend, c.time_ms, c.mb
FROM course AS c
LEFT JOIN held AS h USING (legend)
CROSS JOIN unstreamed
WHERE c.time_ms BETWEEN coalesce(h.from_ms, $from_ms) AND $until_ms
ORDER BY c.legend, c.time_ms, c.mb;
