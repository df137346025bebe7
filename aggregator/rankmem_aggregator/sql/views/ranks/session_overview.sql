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
WITH peak AS (
    SELECT session_id, attempt, rank, max(peak_bytes) AS peak_bytes
    FROM memory_cell(NULL, 1024)
    GROUP BY ALL
),
ranks AS (
    SELECT
        l.session_id,
        CASE WHEN count(*) = count(l.records_lost) THEN sum(l.records_lost)::BIGINT END AS records_lost,
        CASE WHEN count(*) = count(l.events_lost) THEN sum(l.events_lost)::BIGINT END AS events_lost,
        bool_and(l.complete) AS complete,
        arg_max(l.rank, (p.peak_bytes, -l.rank)) FILTER (p.peak_bytes IS NOT NULL) AS highest_rank,
        max(p.peak_bytes) AS peak_requested_bytes
    FROM rank_loss AS l
    LEFT JOIN peak AS p USING (session_id, attempt, rank)
    GROUP BY l.session_id
),
absent AS (
    SELECT session_id, count(*) AS num_absent
    FROM rank_missing
    GROUP BY session_id
)
SELECT
    f.session_id,
    f.name,
    f.source,
    f.state,
    f.started_ns,
    f.ended_ns,
    utc_of(f.started_ns) AS started_utc,
    utc_of(f.ended_ns) AS ended_utc,
    f.ended_ns - f.started_ns AS duration_ns,
    f.world_size,
    f.num_ranks,
    f.num_attempts,
    f.num_hosts,
    f.events,
    CASE WHEN r.session_id IS NULL THEN 0 ELSE r.records_lost END AS records_lost,
    CASE WHEN r.session_id IS NULL THEN 0 ELSE r.events_lost END AS events_lost,
    coalesce(r.complete, false) AND a.num_absent IS NULL AS complete,
    r.highest_rank,
    r.peak_requested_bytes,
    f.command,
    f.torch_version,
    f.python_version,
    f.rankmem_version,
    f.detail,
    f.not_recorded,
    f.was_reduced
FROM session_facts AS f
LEFT JOIN ranks AS r USING (session_id)
LEFT JOIN absent AS a USING (session_id);

COMMENT ON VIEW session_overview IS 'A session with its size, life, highest rank and completeness.';
