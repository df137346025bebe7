-- Question: What has to be remembered of a session that is deleted: how far each of its logs was stored.
-- Parameters:
--   session (text): the session
--   now_ns (ns, the aggregator's clock): when
-- Columns:
--   none: rows of pruned_spool are written
INSERT INTO pruned_spool (
    spool_id, session_id, attempt, rank, last_sequence, final, secret_hash, pruned_ns, has_rows
)
SELECT spool_id, session_id, attempt, rank, last_sequence, final, secret_hash, $now_ns, true
FROM ingest_progress
WHERE session_id = $session;
