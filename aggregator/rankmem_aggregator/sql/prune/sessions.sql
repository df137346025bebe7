-- Question: Which sessions are stored, when was each last heard of, and can more of it come?
-- Columns:
--   session_id: the job
--   last_ns (ns, the aggregator's clock): when a batch of it was stored last
--   final: true if the last batch of every rank's log is stored
--   num_spools: logs of rank processes that it has
SELECT session_id, max(updated_ns) AS last_ns, bool_and(final) AS final, count(*) AS num_spools
FROM ingest_progress
GROUP BY session_id
ORDER BY last_ns, session_id;
