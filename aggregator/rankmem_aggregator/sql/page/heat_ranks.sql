-- Question: Where does each rank of a session belong, and from when to when did it live?
-- Parameters:
--   session (text): session id
-- Columns:
--   rank, attempt: one of its starts
--   host_name: its host
--   dp, tp, pp, cp, ep: its coordinates; NULL where the rank did not report them
--   offset_ns (ns): add to the host's times to get the common clock
--   started_ns, ended_ns (ns, common clock): life of the process; ended_ns NULL while it runs
SELECT
    r.rank,
    r.attempt,
    coalesce(h.host_name, r.host_uid) AS host_name,
    r.dp,
    r.tp,
    r.pp,
    r.cp,
    r.ep,
    coalesce(s.offset_ns, 0) AS offset_ns,
    s.started_ns,
    s.ended_ns
FROM rank_info AS r
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
LEFT JOIN host_info AS h ON r.host_uid = h.host_uid
WHERE r.session_id = $session
ORDER BY r.rank, r.attempt;
