-- Question: From when to when did each step run?
-- Columns:
--   sessionId, attempt, rankId: whose; MindStudio's own shape is * EXCLUDE (sessionId, attempt, rankId)
--   id: number of the step
--   startNs, endNs (ns, common clock): from its ProfilerStep marker's start, else from the end of the step
--     before; the first from the rank's start
-- Scatter: hosts
CREATE OR REPLACE VIEW mindstudio.STEP_TIME AS
SELECT
    t.session_id AS sessionId,
    t.attempt,
    t.rank AS rankId,
    t.step AS id,
    coalesce(
        min(m.started_ns) + coalesce(any_value(s.offset_ns), 0),
        lag(max(t.ended_ns)) OVER (PARTITION BY t.session_id, t.attempt, t.rank ORDER BY max(t.seq))
        + coalesce(any_value(s.offset_ns), 0),
        any_value(s.started_ns)
    ) AS startNs,
    max(t.ended_ns) + coalesce(any_value(s.offset_ns), 0) AS endNs
FROM step AS t
LEFT JOIN marker AS m
    ON m.session_id = t.session_id
    AND m.attempt = t.attempt
    AND m.rank = t.rank
    AND m.name = 'ProfilerStep#' || t.step
    AND m.ended_ns = t.ended_ns
LEFT JOIN rank_span AS s ON s.session_id = t.session_id AND s.attempt = t.attempt AND s.rank = t.rank
GROUP BY t.session_id, t.attempt, t.rank, t.step;

COMMENT ON VIEW mindstudio.STEP_TIME IS 'STEP_TIME, of all sessions and ranks.';
