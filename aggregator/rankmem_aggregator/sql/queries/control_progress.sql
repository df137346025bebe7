-- Question: How far is each running rank of a session's latest attempt, and how long does a step of it take?
-- Parameters:
--   session (text): session id
-- Columns:
--   attempt, rank: who
--   last_step: number of the last step that ended; NULL before the first
--   last_ns (ns, common clock): when
--   step_ns (ns): of the latest steps the mean; NULL with less than two
--   last_order_id: the session's latest order, of all its ranks and attempts; NULL without any
-- Scatter: none
WITH running AS (
    SELECT session_id, attempt, rank, offset_ns
    FROM rank_span
    WHERE session_id = $session AND ended_ns IS NULL
    QUALIFY attempt = max(attempt) OVER ()
),
latest AS (
    SELECT r.attempt, r.rank, s.step, s.ended_ns + r.offset_ns AS ended_ns
    FROM running AS r
    LEFT JOIN step AS s USING (session_id, attempt, rank)
    QUALIFY row_number() OVER (PARTITION BY r.attempt, r.rank ORDER BY s.seq DESC) <= 20
)
SELECT
    attempt,
    rank,
    max(step) AS last_step,
    max(ended_ns) AS last_ns,
    CASE WHEN count(step) > 1 THEN (max(ended_ns) - min(ended_ns)) // (count(step) - 1) END AS step_ns,
    (SELECT max(order_id) FROM control_order WHERE session_id = $session) AS last_order_id
FROM latest
GROUP BY attempt, rank
ORDER BY attempt, rank;
