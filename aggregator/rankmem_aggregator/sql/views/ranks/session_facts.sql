-- Question: What do sessions and their ranks report of themselves: which job, from when to when, and what was switched off?
-- Columns:
--   session_id, name, source: the job
--   state: running, or ended when every rank of the last attempt has ended
--   started_ns, ended_ns (ns, common clock): first rank's start, last rank's end; ended_ns NULL while running
--   world_size: ranks the launcher announced
--   num_ranks, num_attempts, num_hosts: that sent something
--   events: allocator events stored
--   command: the script
--   torch_version, python_version, rankmem_version: of the trainer
--   detail: RANKMEM_DETAIL of its ranks: full, operators, events or auto; NULL if unknown
--   not_recorded: what its ranks had switched off, each different list of operators, stacks, modules once
--   was_reduced: true if these were not recorded in some steps of a rank (rankmem control, detail auto); see detail_span
-- Scatter: none
CREATE OR REPLACE VIEW session_facts AS
WITH ranks AS (
    SELECT
        r.session_id,
        count(DISTINCT r.rank) AS num_ranks,
        count(DISTINCT r.attempt) AS num_attempts,
        count(DISTINCT r.host_uid) AS num_hosts,
        -- Ranks without a clock count from 0: their times are used only where no other rank has any.
        coalesce(min(s.started_ns) FILTER (s.has_clock), min(s.started_ns)) AS started_ns,
        CASE WHEN count(*) = count(s.ended_ns) THEN max(s.ended_ns) END AS ended_ns,
        sum(coalesce(r.events, 0))::BIGINT AS events,
        string_agg(DISTINCT r.detail, ', ' ORDER BY r.detail) AS detail,
        list(DISTINCT r.not_recorded ORDER BY r.not_recorded) FILTER (r.not_recorded IS NOT NULL) AS not_recorded
    FROM rank_info AS r
    INNER JOIN rank_span AS s USING (session_id, attempt, rank)
    GROUP BY r.session_id
)
SELECT
    s.session_id,
    s.name,
    s.source,
    CASE WHEN coalesce(r.ended_ns, s.ended_at_ns) IS NULL THEN 'running' ELSE 'ended' END AS state,
    coalesce(r.started_ns, s.started_at_ns) AS started_ns,
    coalesce(r.ended_ns, s.ended_at_ns) AS ended_ns,
    s.world_size,
    coalesce(r.num_ranks, 0) AS num_ranks,
    coalesce(r.num_attempts, 0) AS num_attempts,
    coalesce(r.num_hosts, 0) AS num_hosts,
    coalesce(r.events, 0) AS events,
    s.command,
    s.torch_version,
    s.python_version,
    s.rankmem_version,
    r.detail,
    coalesce(r.not_recorded, []) AS not_recorded,
    d.session_id IS NOT NULL AS was_reduced
FROM session AS s
LEFT JOIN ranks AS r USING (session_id)
LEFT JOIN (SELECT DISTINCT session_id FROM control_change WHERE detail = 'summary') AS d USING (session_id);

COMMENT ON VIEW session_facts IS 'A session with what it and its ranks report of themselves: all of session_overview that needs no peak and no gap.';
