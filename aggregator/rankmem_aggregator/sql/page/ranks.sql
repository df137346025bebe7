-- Question: Which ranks does a session have, where, on which devices, how high did each stand, and is it complete?
-- Parameters:
--   session (text): session id
-- Columns:
--   attempt, rank, device: a device of a rank; device NULL for a rank without events
--   device_type: cpu, cuda, ...
--   host_name: its host
--   dp, tp, pp, cp, ep: its coordinates; NULL where the rank did not report them
--   peak_bytes, reserved_peak_bytes (bytes): highest requested and reserved bytes; on cpu the same
--   peak_ns (ns, common clock): the first instant of the highest requested bytes
--   peak_seq: the event after which it stood so high
--   events: on that device
--   device_total_bytes (bytes): memory of the device
--   started_ns, ended_ns (ns, common clock): life of the process; ended_ns NULL while it runs
--   clock_error_ns (ns): its times are right to within this; NULL if that was never measured
--   state: running, or how it ended
--   complete: true if nothing is missing
--   is_rank_peak: true on the attempt in which this rank and device stood highest
-- As rank_overview has it, whose peaks over all devices would be found besides.
SELECT
    i.attempt,
    i.rank,
    p.device,
    p.device_type,
    coalesce(h.host_name, i.host_uid) AS host_name,
    i.dp,
    i.tp,
    i.pp,
    i.cp,
    i.ep,
    p.peak_requested_bytes AS peak_bytes,
    p.peak_reserved_bytes AS reserved_peak_bytes,
    p.peak_time_ns AS peak_ns,
    p.peak_seq,
    coalesce(p.events, 0) AS events,
    p.device_total_bytes,
    s.started_ns,
    s.ended_ns,
    s.error_ns AS clock_error_ns,
    CASE WHEN i.end_reason IS NULL AND s.ended_ns IS NOT NULL THEN 'lost' ELSE coalesce(i.end_reason, 'running') END
        AS state,
    coalesce(i.complete, false) AND g.rank IS NULL AND NOT (i.end_reason IS NULL AND s.ended_ns IS NOT NULL) AS complete,
    coalesce(p.is_rank_peak, false) AS is_rank_peak
FROM rank_info AS i
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
LEFT JOIN host_info AS h ON i.host_uid = h.host_uid
LEFT JOIN peak_by_rank AS p USING (session_id, attempt, rank)
LEFT JOIN (SELECT DISTINCT session_id, attempt, rank FROM gap WHERE why <> 'hooks_off') AS g
    USING (session_id, attempt, rank)
WHERE i.session_id = $session
ORDER BY i.rank, i.attempt, p.device;
