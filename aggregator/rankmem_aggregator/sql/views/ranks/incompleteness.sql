-- Question: What is missing of each rank, since when, and why (no row: nothing that anybody knows of)?
-- Columns:
--   session_id, attempt, rank: who
--   why: as in gap; or never_reported, awaited, lost, unexplained, strings_dropped, no_device, no_clock; control: switched
--     off for some steps, by rankmem control or by detail auto; steady: known otherwise than by being observed, and not
--     in full or not for sure (RANKMEM_STEADY); partial: an imported
--     recording that does not state whether it is complete
--   what: what is missing: events, or which names; byte figures are exact where it is names
--   detail: what happened, in words; NULL where why is enough
--   since_ns (ns, common clock): from when on; NULL where it is no matter of an instant
--   since_utc: the same, readable
--   records: how many records of its log are missing, so at most as many events; NULL where not known
--   is_bytes: true if figures of bytes are too low or not exact, false if names alone are missing; NULL where it is not
--     known whether anything is (partial)
--   sentence: all of this in words
-- Scatter: hosts
CREATE OR REPLACE VIEW incompleteness AS
-- Made once for all that needs a clock: planning it takes longer than the rest.
WITH span AS MATERIALIZED (
    SELECT session_id, attempt, rank, offset_ns, ended_ns IS NOT NULL AS is_over, has_clock
    FROM rank_span
),
hole AS (
    SELECT
        g.session_id,
        g.attempt,
        g.rank,
        g.why,
        coalesce(g.what, 'events') AS what,
        g.detail,
        CASE WHEN g.to_end THEN min(g.noticed_ns) + coalesce(any_value(s.offset_ns), 0) END AS since_ns,
        CASE
            WHEN g.to_end IS DISTINCT FROM true AND g.why <> 'ring_overwritten' THEN sum(g.records)::BIGINT
        END AS records
    FROM gap AS g
    LEFT JOIN span AS s USING (session_id, attempt, rank)
    GROUP BY g.session_id, g.attempt, g.rank, g.why, g.what, g.detail, g.to_end
),
of_gaps AS (
    SELECT
        *,
        why <> 'hooks_off' AS is_bytes,
        CASE why
            WHEN 'agent_off' THEN
                'the agent switched itself off at ' || instant || because
                || ': nothing after that was recorded; the true peak may be higher than shown'
            WHEN 'never_read' THEN
                'the events of its last seconds are missing: its process ended before they were read' || because
                || '; the true peak may be higher than shown'
            WHEN 'not_started' THEN 'not recorded' || because || ': all of its figures are missing'
            WHEN 'device_off' THEN what || ' were not recorded' || because || ': figures for that device are missing'
            WHEN 'hooks_off' THEN
                what || ' were not recorded after ' || instant || because || '; byte figures are exact'
            WHEN 'spool_full' THEN many || ' are missing: its spool was full (RANKMEM_SPOOL_BYTES)'
            WHEN 'torn' THEN many || ' are missing: its process ended while writing them'
            WHEN 'ring_overwritten' THEN 'an unknown number of events are missing: PyTorch''s own history was overwritten before it was read'
            WHEN 'set_aside' THEN
                CASE WHEN records IS NULL THEN 'all from ' || instant || ' on is' ELSE many || ' are' END
                || ' missing' || because || ': its log could not be stored, and is set aside on its host'
            WHEN 'other_database' THEN many || ' are missing here: another database has them'
            ELSE many || ' are missing (' || why || ')' || because
        END AS sentence
    FROM (
        SELECT
            *,
            -- Not by utc_of: how that reads depends on the reader's time zone.
            coalesce(strftime(make_timestamp(since_ns // 1000), '%H:%M:%S') || ' UTC', 'an unknown time') AS instant,
            coalesce(' (' || detail || ')', '') AS because,
            -- An event is a record, and so are a call, a tag, a sample: how many of each is not known.
            CASE
                WHEN coalesce(records, 0) = 0 THEN '0 records'
                WHEN records = 1 THEN '1 record (at most 1 event)'
                ELSE format('{:,}', records) || ' records (at most as many events)'
            END AS many
        FROM hole
    )
),
summarised AS (
    SELECT
        session_id,
        attempt,
        rank,
        'control' AS why,
        'operators, stacks and modules' AS what,
        NULL::VARCHAR AS detail,
        since_ns,
        NULL::BIGINT AS records,
        false AS is_bytes,
        sentence
    FROM (
        SELECT
            t.session_id,
            t.attempt,
            t.rank,
            min(t.first_ns) + coalesce(any_value(s.offset_ns), 0) AS since_ns,
            'operators, stacks and modules were not recorded in steps '
            || string_agg(
                t.step_first || CASE WHEN t.step_last IS NULL THEN ' on' ELSE ' to ' || t.step_last END, ', '
                ORDER BY t.seq_first
            )
            || CASE min(t.asked_by) || max(t.asked_by)
                WHEN 'autoauto' THEN ' (detail auto)'
                WHEN 'autocontrol' THEN ' (detail auto, rankmem control)'
                ELSE ' (rankmem control)' END
            || ': categories other than those of parameters, gradients and optimizer state are unknown there; byte '
            || 'figures are exact' AS sentence
        FROM detail_turn AS t
        LEFT JOIN span AS s USING (session_id, attempt, rank)
        GROUP BY t.session_id, t.attempt, t.rank
        UNION ALL BY NAME
        SELECT
            session_id,
            attempt,
            rank,
            'its highest finished step, ' || peak_step || ' (' || format('{:,}', peak_bytes) || ' bytes on ' || device
            || '), was ' || CASE WHEN is_full THEN 'recorded in full' ELSE 'not recorded in full: '
                || coalesce(
                    'the highest that was is ' || full_step || ' (' || format('{:,}', full_bytes) || ' bytes)',
                    'none was'
                ) END AS sentence
        FROM detail_peak
        CROSS JOIN unstreamed
    )
),
-- Of ranks that have nothing but blocks that were observed, or whose whole step was, nothing is missing.
unobserved AS (
    SELECT
        session_id,
        attempt,
        rank,
        'steady' AS why,
        'names' AS what,
        false AS is_bytes,
        array_to_string(
            [
                CASE WHEN audit_differences > 0 THEN
                    'in ' || format('{:,}', host_differences) || CASE host_differences WHEN 1 THEN ' place' ELSE ' places' END
                    || ' of a step, another operator, module, phase or stack was observed than in the step taken as '
                    || 'template: blocks known by template from before that may have the wrong one there, later ones have '
                    || '"a or b" or none'
                END,
                CASE
                    WHEN prefix_blocks > 0 AND evidence_blocks > 0 THEN
                        'some blocks are known by the beginning of a step alone, or by what was read at their allocation '
                        || '(a phase, a forward call or a category may be missing)'
                    WHEN prefix_blocks > 0 THEN 'some blocks are known by the beginning of a step alone'
                    WHEN evidence_blocks > 0 THEN
                        'some blocks are known by what was read at their allocation (a phase, a forward call or a '
                        || 'category may be missing)'
                END
            ],
            '; '
        ) || '; allocation.attribution tells which (RANKMEM_STEADY); byte figures are exact' AS sentence
    FROM (
        SELECT
            *,
            sum(audit_differences) OVER (PARTITION BY session_id, attempt, host_uid)::BIGINT AS host_differences
        FROM rank_info
        WHERE template_blocks IS NOT NULL
    )
    WHERE audit_differences > 0 OR prefix_blocks > 0 OR evidence_blocks > 0
),
absent AS (
    SELECT
        session_id,
        attempt,
        rank,
        replace(state, ' ', '_') AS why,
        'events' AS what,
        true AS is_bytes,
        CASE state
            WHEN 'awaited' THEN 'has not reported yet: its figures are missing'
            ELSE 'never reported: the launcher announced it, but nothing from it is stored'
        END AS sentence
    FROM rank_missing
),
unreported AS (
    SELECT session_id, attempt, rank, max(strings_dropped) AS dropped
    FROM self_cost
    GROUP BY session_id, attempt, rank
    HAVING max(strings_dropped) > 0
),
of_ranks AS (
    SELECT
        r.session_id,
        r.attempt,
        r.rank,
        unnest([
            CASE WHEN r.end_reason IS NULL AND s.is_over THEN 'lost' END,
            CASE WHEN coalesce(r.unexplained_bytes, 0) <> 0 THEN 'unexplained' END,
            CASE WHEN u.dropped IS NOT NULL THEN 'strings_dropped' END,
            CASE
                WHEN n.source = 'live' AND s.is_over AND g.rank IS NULL AND coalesce(r.events, 0) = 0
                    AND d.rank IS NULL
                    THEN 'no_device'
            END,
            CASE
                WHEN n.source <> 'live' AND r.complete IS DISTINCT FROM true AND g.rank IS NULL
                    AND coalesce(r.unexplained_bytes, 0) = 0
                    -- A profile of kernels has no figures of bytes.
                    AND (coalesce(r.events, 0) > 0 OR n.source NOT IN ('nvprof', 'nsys'))
                    THEN 'partial'
            END,
            CASE WHEN NOT s.has_clock AND r.num_ranks > 1 THEN 'no_clock' END
        ]) AS why,
        r.unexplained_bytes,
        coalesce(r.events_lost, 0) AS records_lost,
        u.dropped
    FROM (SELECT *, count(*) OVER (PARTITION BY session_id) AS num_ranks FROM rank_info) AS r
    LEFT JOIN span AS s USING (session_id, attempt, rank)
    LEFT JOIN (SELECT DISTINCT session_id, attempt, rank FROM gap WHERE why <> 'hooks_off') AS g
        USING (session_id, attempt, rank)
    LEFT JOIN session AS n USING (session_id)
    LEFT JOIN unreported AS u USING (session_id, attempt, rank)
    LEFT JOIN (SELECT DISTINCT session_id, attempt, rank FROM device_info) AS d USING (session_id, attempt, rank)
),
worded AS (
    SELECT
        session_id,
        attempt,
        rank,
        why,
        CASE WHEN why = 'strings_dropped' THEN 'names' ELSE 'events' END AS what,
        CASE
            WHEN why <> 'partial' THEN why <> 'strings_dropped'
            WHEN records_lost > 0 THEN true
        END AS is_bytes,
        CASE why
            WHEN 'lost' THEN 'the end of the process was never reported: the last events may be missing'
            WHEN 'unexplained' THEN
                format('{:,}', unexplained_bytes)
                || ' bytes are unexplained: the recorded events differ from the allocator''s own figure by that much'
            WHEN 'strings_dropped' THEN
                format('{:,}', dropped)
                || ' names or stacks did not fit into the spool and are unknown; byte figures are exact'
            WHEN 'partial' THEN
                CASE WHEN records_lost > 0 THEN 'events missing from the recording: ' || format('{:,}', records_lost) || '; '
                    ELSE 'the recording does not show whether it holds every event: ' END
                || 'the true peak may be higher than shown'
            WHEN 'no_clock' THEN
                'the recording has no times: left out of sums and curves over several ranks'
            ELSE 'none of its devices were recorded'
        END AS sentence
    FROM of_ranks
    WHERE why IS NOT NULL
)
SELECT
    session_id,
    attempt,
    rank,
    why,
    what,
    detail,
    since_ns,
    utc_of(since_ns) AS since_utc,
    records,
    is_bytes,
    sentence
FROM (
    SELECT session_id, attempt, rank, why, what, detail, since_ns, records, is_bytes, sentence
    FROM of_gaps
    UNION ALL BY NAME
    SELECT * FROM summarised
    UNION ALL BY NAME
    SELECT * FROM unobserved
    UNION ALL BY NAME
    SELECT * FROM absent
    UNION ALL BY NAME
    SELECT * FROM worded
)
CROSS JOIN unstreamed;

COMMENT ON VIEW incompleteness IS 'What is missing of a rank, since when and why; no row for what is complete.';
