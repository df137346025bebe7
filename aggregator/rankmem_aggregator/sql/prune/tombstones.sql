-- Question: What has to be remembered of a session of a lake: how far each of its logs was stored?
-- Parameters:
--   session (text): the session
--   now_ns (ns, the aggregator's clock): when
-- Columns:
--   those of pruned_spool
SELECT spool_id, session_id, attempt, rank, last_sequence, final, secret_hash, $now_ns::BIGINT AS pruned_ns,
    false AS has_rows
FROM ingest_progress
WHERE session_id = $session
ORDER BY attempt, rank, spool_id
