-- Question: How far is each rank stored, what is lost of it, and what did recording it cost?
-- Parameters:
--   session (text): session id
-- Columns:
--   rank, attempt, host_name: who
--   end_reason, events, records_lost, gaps, complete, lag_ns, spool_bytes, sent_bytes, shipper_cpu_ns: as in rank_status
--   last_event_ns (ns, common clock): its last stored event
--   unexplained_bytes (bytes): replayed requested bytes minus the allocator's own figure, at the end
--   attach_ns (ns): what the agent's start took in the trainer
--   is_exact, at_least_bytes: of its highest peak, as in peak_bound
SELECT
    t.rank,
    t.attempt,
    t.host_name,
    t.end_reason,
    t.events,
    t.records_lost,
    t.gaps,
    t.complete,
    t.lag_ns,
    t.spool_bytes,
    t.sent_bytes,
    t.shipper_cpu_ns,
    t.last_event_ns,
    i.unexplained_bytes,
    c.attach_ns,
    p.is_exact,
    p.at_least_bytes
FROM rank_status AS t
LEFT JOIN rank_info AS i USING (session_id, attempt, rank)
LEFT JOIN (
    SELECT session_id, attempt, rank, max(attach_ns) AS attach_ns FROM self_cost GROUP BY session_id, attempt, rank
) AS c USING (session_id, attempt, rank)
LEFT JOIN (
    SELECT session_id, attempt, rank, bool_and(is_exact) AS is_exact, max(at_least_bytes) AS at_least_bytes
    FROM peak_bound
    GROUP BY session_id, attempt, rank
) AS p USING (session_id, attempt, rank)
WHERE t.session_id = $session
ORDER BY t.complete, t.rank, t.attempt;
