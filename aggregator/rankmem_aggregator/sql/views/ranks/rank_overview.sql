-- Question: Which ranks ran, where, from when to when, how did they end, and is what we have complete?
-- Columns:
--   session_id, attempt, rank, local_rank: who
--   host_uid, host_name, pid: where
--   devices: list of devices with events
--   started_ns, ended_ns (ns, common clock): its life; ended_ns is NULL while it runs
--   started_utc, ended_utc: the same, readable
--   end_reason: as in rank_info: exit, exception, exit N, _exit N, killed; NULL while it runs
--   state: the same; running; or lost: a later attempt has begun, and its host never reported how it ended
--   peak_requested_bytes (bytes): its highest peak over its devices
--   events: allocator events stored
--   records_lost: records of the logs known to be missing, of events and of all else; NULL: their number is not known
--   events_lost: at most so many allocator events are missing; as in rank_loss
--   gaps: holes in its log; each is a row of gap
--   unexplained_bytes (bytes): replayed requested bytes minus the allocator's own figure, at the end
--   complete: true if nothing is missing
--   clock_offset_ns, clock_error_ns (ns): what was added to its times, and within which bound
--   detail: RANKMEM_DETAIL: full, operators, events or auto; NULL if unknown
--   not_recorded: what was switched off, a list of operators, stacks, modules; empty: nothing; NULL if unknown
--   exit_code: of its process; below zero the signal that ended it; NULL: not known
--   exception: type of the exception that ended it
--   has_clock: false if it was imported from a recording without times
--   num_steps, steady_steps, template_blocks, prefix_blocks, evidence_blocks, steady_misses, audit_differences: as in
--     rank_steady; NULL where every step was observed
-- Scatter: hosts
CREATE OR REPLACE VIEW rank_overview AS
WITH device_peak AS (
    SELECT session_id, attempt, rank, list(device ORDER BY device) AS devices,
        max(peak_requested_bytes) AS peak_requested_bytes
    FROM (
        SELECT session_id, attempt, rank, device, max(peak_bytes) AS peak_requested_bytes
        FROM memory_cell(NULL, 1024)
        GROUP BY ALL
    )
    GROUP BY session_id, attempt, rank
)
SELECT
    r.session_id,
    r.attempt,
    r.rank,
    r.local_rank,
    r.host_uid,
    h.host_name,
    r.pid,
    coalesce(p.devices, []) AS devices,
    s.started_ns,
    s.ended_ns,
    s.started_utc,
    s.ended_utc,
    r.end_reason,
    CASE WHEN r.end_reason IS NULL AND s.ended_ns IS NOT NULL THEN 'lost' ELSE coalesce(r.end_reason, 'running') END
        AS state,
    p.peak_requested_bytes,
    coalesce(r.events, 0) AS events,
    l.records_lost,
    l.events_lost,
    l.gaps,
    r.unexplained_bytes,
    l.complete,
    s.offset_ns AS clock_offset_ns,
    s.error_ns AS clock_error_ns,
    r.detail,
    r.not_recorded,
    r.exit_code,
    r.exception,
    coalesce(s.has_clock, true) AS has_clock,
    t.num_steps,
    t.steady_steps,
    t.template_blocks,
    t.prefix_blocks,
    t.evidence_blocks,
    t.steady_misses,
    t.audit_differences
FROM rank_info AS r
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
LEFT JOIN host_info AS h ON r.host_uid = h.host_uid
LEFT JOIN device_peak AS p USING (session_id, attempt, rank)
LEFT JOIN rank_loss AS l USING (session_id, attempt, rank)
LEFT JOIN rank_steady AS t USING (session_id, attempt, rank);

COMMENT ON VIEW rank_overview IS 'A rank of an attempt with its host, devices, life, peak and completeness.';
