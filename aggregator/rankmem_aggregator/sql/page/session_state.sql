-- Question: When did a session begin, has it ended, and what changes whenever anything of it does?
-- Parameters:
--   session (text): session id
-- Columns:
--   session_id: the job
--   origin_ns (ns, common clock): its start; 0 where its recording has no times
--   ended: true once every rank has ended
--   watermark (text): differs if any row of it may: positions of its logs that are stored, ranks, attempts, logs
--     that are whole, ranks that ended, failed allocations, what is summarised, offsets of clocks
WITH log AS (
    SELECT sum(last_sequence)::BIGINT AS positions, count(*) FILTER (final) AS num_whole
    FROM ingest_progress
    WHERE session_id = $session
),
ranks AS (
    SELECT
        coalesce(sum(num_ranks), 0) AS num_ranks,
        count(*) AS num_attempts,
        coalesce(sum(num_ends), 0) AS num_ends,
        sum(events)::BIGINT AS events
    FROM (
        SELECT
            attempt,
            count(*) AS num_ranks,
            count(end_reason) + count(ended_at_ns) AS num_ends,
            sum(events) AS events
        FROM rank_info
        WHERE session_id = $session
        GROUP BY attempt
    )
),
failed AS (
    SELECT count(*) AS num_ooms
    FROM oom
    WHERE session_id = $session
),
told AS (
    SELECT sum(seq)::BIGINT AS positions
    FROM summary_progress
    WHERE session_id = $session
),
span AS (
    SELECT
        sum(offset_ns)::HUGEINT AS offsets_ns,
        coalesce(min(started_ns) FILTER (WHERE has_clock), min(started_ns)) AS started_ns,
        count(*) > 0 AND count(*) = count(ended_ns) AS ended
    FROM rank_span
    WHERE session_id = $session
)
SELECT
    s.session_id,
    coalesce(p.started_ns, s.started_at_ns, 0) AS origin_ns,
    p.ended OR s.ended_at_ns IS NOT NULL AS ended,
    concat_ws(
        '-', coalesce(l.positions, 0), coalesce(r.events, 0), r.num_ranks, r.num_attempts, coalesce(l.num_whole, 0), r.num_ends,
        s.ended_at_ns IS NOT NULL, o.num_ooms,
        coalesce(t.positions, 0), coalesce(p.offsets_ns, 0)
    ) AS watermark
FROM session AS s
CROSS JOIN log AS l
CROSS JOIN ranks AS r
CROSS JOIN failed AS o
CROSS JOIN span AS p
CROSS JOIN told AS t
CROSS JOIN unstreamed
WHERE s.session_id = $session
ORDER BY s.session_id;
