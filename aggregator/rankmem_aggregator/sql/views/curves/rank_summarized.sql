-- Question: Which ranks does a session have, and up to where of its log is each in the summaries of groups?
-- Parameters:
--   of_session: session id
-- Columns:
--   attempt, rank: who; with a row of rank_info or an event
--   seq: up to here group_bucket and group_total have its blocks; -4611686018427387904: nothing is
--   is_final: true if that is the end of its log
-- Scatter: hosts
CREATE OR REPLACE MACRO rank_summarized(of_session) AS TABLE
SELECT r.attempt, r.rank, coalesce(p.seq, -4611686018427387904) AS seq, coalesce(p.final, false) AS is_final
FROM (
    SELECT attempt, rank FROM rank_info WHERE session_id = of_session
    UNION
    SELECT attempt, rank FROM memory_bucket WHERE session_id = of_session
) AS r
LEFT JOIN summary_progress AS p ON p.session_id = of_session AND p.attempt = r.attempt AND p.rank = r.rank;

COMMENT ON MACRO TABLE rank_summarized IS 'How far the summaries of groups have come in each rank''s log.';
