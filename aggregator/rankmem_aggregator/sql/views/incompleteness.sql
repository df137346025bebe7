-- Question: What is missing of each rank, since when, and why (no row: nothing that anybody knows of)?
-- Columns:
--   session_id, attempt, rank: who
--   why: as in gap; or never_reported, awaited, lost, unexplained, strings_dropped, no_device, no_clock
--   what: what is missing: events, or which names; byte figures are exact where it is names
--   detail: what happened, in words; NULL where why says all
--   since_ns (ns, common clock): from when on; NULL where it is no matter of an instant
--   since_utc: the same, readable
--   records: how many records are missing; NULL where nobody knows
--   is_bytes: true if figures of bytes are too low or not exact, false if names alone are missing
--   sentence: all of this in words
CREATE OR REPLACE VIEW incompleteness AS
WITH hole AS (
    SELECT
        g.session_id,
        g.attempt,
        g.rank,
        g.why,
        coalesce(g.what, 'events') AS what,
        g.detail,
        CASE WHEN g.to_end THEN min(g.noticed_ns) + coalesce(any_value(s.offset_ns), 0) END AS since_ns,
        CASE WHEN g.to_end IS DISTINCT FROM true THEN sum(g.records)::BIGINT END AS records
    FROM gap AS g
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
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
            WHEN 'not_started' THEN 'not recorded' || because || ': all of its figures are missing'
            WHEN 'device_off' THEN what || ' were not recorded' || because || ': figures for that device are missing'
            WHEN 'hooks_off' THEN
                what || ' were not recorded after ' || instant || because || '; byte figures are exact'
            WHEN 'spool_full' THEN many || ' are missing: its spool was full (RANKMEM_SPOOL_BYTES)'
            WHEN 'torn' THEN many || ' are missing: its process ended while writing them'
            WHEN 'ring_overwritten' THEN many || ' are missing: PyTorch''s own history was overwritten before it was read'
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
            CASE WHEN records = 1 THEN '1 record' ELSE format('{:,}', coalesce(records, 0)) || ' records' END AS many
        FROM hole
    )
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
untold AS (
    SELECT session_id, attempt, rank, max(strings_dropped) AS dropped
    FROM self_cost
    GROUP BY session_id, attempt, rank
    HAVING max(strings_dropped) > 0
),
of_ranks AS (
    SELECT
        o.session_id,
        o.attempt,
        o.rank,
        unnest([
            CASE WHEN o.state = 'lost' THEN 'lost' END,
            CASE WHEN coalesce(o.unexplained_bytes, 0) <> 0 THEN 'unexplained' END,
            CASE WHEN u.dropped IS NOT NULL THEN 'strings_dropped' END,
            CASE
                WHEN n.source = 'live' AND o.ended_ns IS NOT NULL AND o.gaps = 0 AND o.events = 0 AND d.rank IS NULL
                    THEN 'no_device'
            END,
            CASE WHEN NOT o.has_clock AND o.num_ranks > 1 THEN 'no_clock' END
        ]) AS why,
        o.unexplained_bytes,
        u.dropped
    FROM (
        SELECT *, count(*) OVER (PARTITION BY session_id) AS num_ranks FROM rank_overview
    ) AS o
    LEFT JOIN session AS n USING (session_id)
    LEFT JOIN untold AS u USING (session_id, attempt, rank)
    LEFT JOIN (SELECT DISTINCT session_id, attempt, rank FROM device_info) AS d USING (session_id, attempt, rank)
),
told AS (
    SELECT
        session_id,
        attempt,
        rank,
        why,
        CASE WHEN why = 'strings_dropped' THEN 'names' ELSE 'events' END AS what,
        why <> 'strings_dropped' AS is_bytes,
        CASE why
            WHEN 'lost' THEN 'its host never reported how it ended: its last events may be missing'
            WHEN 'unexplained' THEN
                format('{:,}', unexplained_bytes)
                || ' bytes are unexplained: the recorded events differ from the allocator''s own figure by that much'
            WHEN 'strings_dropped' THEN
                format('{:,}', dropped)
                || ' names or stacks did not fit into the spool and are unknown; byte figures are exact'
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
    SELECT * FROM absent
    UNION ALL BY NAME
    SELECT * FROM told
);

COMMENT ON VIEW incompleteness IS 'What is missing of a rank, since when and why; no row for what is complete.';
