-- Question: What are each rank's lag and losses now?
-- Parameters:
--   session (text): session id
--   now_ns (ns, the aggregator's clock): the moment to ask of; NULL: that of the database's own machine
-- Columns:
--   all columns of the view rank_status
--   state: running, silent (nothing stored for 30 s), ending (its process ended, not all is stored), ended, killed
--   silent_ns (ns): since its last batch was stored; NULL once all is
-- Scatter: hosts
WITH asked AS (
    SELECT *, coalesce($now_ns::BIGINT, epoch_ns(now())) - stored_ns AS since_ns
    FROM rank_status
    WHERE session_id = $session
)
SELECT
    * EXCLUDE (since_ns),
    CASE
        WHEN final AND end_reason = 'killed' THEN 'killed'
        WHEN final THEN 'ended'
        WHEN since_ns > 30000000000 THEN 'silent'
        WHEN ended_ns IS NOT NULL THEN 'ending'
        ELSE 'running'
    END AS state,
    CASE WHEN NOT final AND stored_ns IS NOT NULL THEN greatest(since_ns, 0) END AS silent_ns
FROM asked
ORDER BY attempt, rank;
