-- Question: From when to when did each step run?
-- Columns:
--   sessionId, attempt, rankId: whose; MindStudio's own shape is * EXCLUDE (sessionId, attempt, rankId)
--   id: number of the step
--   startNs, endNs (ns, common clock): from the end of the step before; the first from the rank's start
CREATE OR REPLACE VIEW mindstudio.STEP_TIME AS
SELECT
    t.session_id AS sessionId,
    t.attempt,
    t.rank AS rankId,
    t.step AS id,
    coalesce(
        lag(max(t.ended_ns)) OVER (PARTITION BY t.session_id, t.attempt, t.rank ORDER BY max(t.seq))
        + coalesce(any_value(s.offset_ns), 0),
        any_value(s.started_ns)
    ) AS startNs,
    max(t.ended_ns) + coalesce(any_value(s.offset_ns), 0) AS endNs
FROM step AS t
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
GROUP BY t.session_id, t.attempt, t.rank, t.step;

COMMENT ON VIEW mindstudio.STEP_TIME IS 'STEP_TIME, of all sessions and ranks.';
