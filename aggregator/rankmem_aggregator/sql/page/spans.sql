-- Question: Which training steps and annotations of a rank touch a range of time? The longest annotations, where there are many.
-- Parameters:
--   session (text): session id
--   attempt, rank: which start of which rank
--   offset_ns (ns): added to its host's times
--   from_ns, until_ns (ns, common clock): the range
--   shortest_ns (ns): annotations that are shorter are left out
--   at_most (count): rows of each kind
-- Columns:
--   kind: step; or annotation (user_scope, annotate, nvtx)
--   name: the annotation's text; the step's number
--   depth: 0 is the outermost range of its thread; 0 of a step
--   begin_ns, end_ns (ns, common clock): from when to when; a step begins where the one before ended, the first with the process
--   left_out (count): how many of its kind are not among the rows
WITH step_end AS (
    -- Of several optimizers that end a step the last one does.
    SELECT step, max(ended_ns) AS ended_ns
    FROM step
    WHERE session_id = $session AND attempt = $attempt AND rank = $rank
    GROUP BY step
),
step_span AS (
    SELECT
        'step' AS kind,
        step::VARCHAR AS name,
        0 AS depth,
        coalesce(
            lag(ended_ns) OVER (ORDER BY step),
            (SELECT started_at_ns FROM rank_info WHERE session_id = $session AND attempt = $attempt AND rank = $rank),
            ended_ns
        ) + $offset_ns AS begin_ns,
        ended_ns + $offset_ns AS end_ns,
        step AS place
    FROM step_end
),
marker_span AS (
    SELECT
        'annotation' AS kind,
        name,
        coalesce(depth, 0) AS depth,
        started_ns + $offset_ns AS begin_ns,
        coalesce(ended_ns + $offset_ns, $until_ns) AS end_ns,
        started_ns - coalesce(ended_ns, $until_ns - $offset_ns) AS place
    FROM (
        SELECT name, kind, depth, started_ns,
            -- One whose end is missing was over when the next began in its place.
            coalesce(ended_ns, lead(started_ns) OVER (PARTITION BY thread, depth ORDER BY started_ns)) AS ended_ns
        FROM marker
        WHERE session_id = $session AND attempt = $attempt AND rank = $rank
    )
    WHERE kind IN ('user_scope', 'annotate', 'nvtx')
),
shown AS (
    SELECT
        *,
        end_ns - begin_ns >= $shortest_ns OR kind = 'step' AS is_long,
        row_number() OVER (PARTITION BY kind ORDER BY place, begin_ns) AS nth,
        count(*) OVER (PARTITION BY kind) AS known
    FROM (FROM step_span UNION ALL FROM marker_span)
    WHERE begin_ns <= $until_ns AND end_ns >= $from_ns
)
SELECT kind, name, depth, begin_ns, end_ns, known - count(*) OVER (PARTITION BY kind) AS left_out
FROM shown
WHERE is_long AND nth <= $at_most
ORDER BY kind DESC, begin_ns, depth;
