-- Question: Which sessions are stored, how large were they, and are they complete?
-- Columns:
--   session_id, name, source: the job
--   state: running, or ended when every rank of the last attempt has ended
--   started_ns, ended_ns (ns, common clock): first rank's start, last rank's end; ended_ns NULL while running
--   started_utc, ended_utc: the same, readable
--   duration_ns (ns): from start to end; NULL while running
--   world_size: ranks the launcher announced
--   num_ranks, num_attempts, num_hosts: that sent something
--   events: allocator events stored
--   records_lost: records of the logs known to be missing, of events and of all else; NULL: their number is not known
--   events_lost: at most so many allocator events are missing; as in rank_loss
--   complete: true if every rank that the launcher announced came and is complete
--   highest_rank: the rank with the highest peak; of several the lowest
--   peak_requested_bytes (bytes): that peak
--   command: the script
--   torch_version, python_version, rankmem_version: of the trainer
--   detail: RANKMEM_DETAIL of its ranks: full, operators, events or auto; NULL if unknown
--   not_recorded: what its ranks had switched off, each different list of operators, stacks, modules once
--   was_reduced: true if these were not recorded in some steps of a rank (rankmem control, detail auto); see detail_span
-- Scatter: none
CREATE OR REPLACE VIEW session_overview AS
WITH ranks AS (
    SELECT
        session_id,
        count(DISTINCT rank) AS num_ranks,
        count(DISTINCT attempt) AS num_attempts,
        count(DISTINCT host_uid) AS num_hosts,
        -- Ranks without a clock count from 0: their times are used only where no other rank has any.
        coalesce(min(started_ns) FILTER (WHERE has_clock), min(started_ns)) AS started_ns,
        CASE WHEN count(*) = count(ended_ns) THEN max(ended_ns) END AS ended_ns,
        sum(events)::BIGINT AS events,
        CASE WHEN count(*) = count(records_lost) THEN sum(records_lost)::BIGINT END AS records_lost,
        CASE WHEN count(*) = count(events_lost) THEN sum(events_lost)::BIGINT END AS events_lost,
        bool_and(complete) AS complete,
        arg_max(rank, (peak_requested_bytes, -rank)) FILTER (peak_requested_bytes IS NOT NULL) AS highest_rank,
        max(peak_requested_bytes) AS peak_requested_bytes,
        string_agg(DISTINCT detail, ', ' ORDER BY detail) AS detail,
        list(DISTINCT not_recorded ORDER BY not_recorded) FILTER (not_recorded IS NOT NULL) AS not_recorded
    FROM rank_overview
    GROUP BY session_id
),
absent AS (
    SELECT session_id, count(*) AS num_absent
    FROM rank_missing
    GROUP BY session_id
)
SELECT
    s.session_id,
    s.name,
    s.source,
    CASE WHEN coalesce(r.ended_ns, s.ended_at_ns) IS NULL THEN 'running' ELSE 'ended' END AS state,
    coalesce(r.started_ns, s.started_at_ns) AS started_ns,
    coalesce(r.ended_ns, s.ended_at_ns) AS ended_ns,
    utc_of(coalesce(r.started_ns, s.started_at_ns)) AS started_utc,
    utc_of(coalesce(r.ended_ns, s.ended_at_ns)) AS ended_utc,
    coalesce(r.ended_ns, s.ended_at_ns) - coalesce(r.started_ns, s.started_at_ns) AS duration_ns,
    s.world_size,
    coalesce(r.num_ranks, 0) AS num_ranks,
    coalesce(r.num_attempts, 0) AS num_attempts,
    coalesce(r.num_hosts, 0) AS num_hosts,
    coalesce(r.events, 0) AS events,
    CASE WHEN r.num_ranks IS NULL THEN 0 ELSE r.records_lost END AS records_lost,
    CASE WHEN r.num_ranks IS NULL THEN 0 ELSE r.events_lost END AS events_lost,
    coalesce(r.complete, false) AND a.num_absent IS NULL AS complete,
    r.highest_rank,
    r.peak_requested_bytes,
    s.command,
    s.torch_version,
    s.python_version,
    s.rankmem_version,
    r.detail,
    coalesce(r.not_recorded, []) AS not_recorded,
    d.session_id IS NOT NULL AS was_reduced
FROM session AS s
LEFT JOIN ranks AS r USING (session_id)
LEFT JOIN absent AS a USING (session_id)
LEFT JOIN (SELECT DISTINCT session_id FROM control_change WHERE detail = 'summary') AS d USING (session_id);

COMMENT ON VIEW session_overview IS 'A session with its size, life, highest rank and completeness.';
