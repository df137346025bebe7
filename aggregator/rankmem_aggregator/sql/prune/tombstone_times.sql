-- Question: When was each session deleted that is remembered?
-- Columns:
--   session_id: the job
--   pruned_ns (ns, the aggregator's clock): when
SELECT session_id, max(pruned_ns) AS pruned_ns
FROM pruned_spool
GROUP BY session_id
ORDER BY session_id
