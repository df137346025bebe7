-- Question: Which ranks have settled events that are not in the summaries yet, and up to where?
-- Parameters:
--   steps_back (count): of a rank that runs, events are settled once so many steps have ended after them
--   events_back (count): or once so many positions of the log have followed
--   of_pass (count): a pass takes at most so many positions of a rank's log
--   least (count): fewer positions of a rank that runs are not worth a pass
-- Columns:
--   session_id, attempt, rank: who
--   seq_from: up to here it is in the summaries; -4611686018427387904: nothing is
--   seq_upto: up to here it is to be
--   final: true if that is the end of its log
WITH known AS (
    SELECT
        i.session_id,
        i.attempt,
        i.rank,
        bool_and(i.final) AS final,
        max(i.last_sequence) AS last_sequence,
        coalesce(any_value(p.seq), -4611686018427387904) AS seq_from
    FROM ingest_progress AS i
    LEFT JOIN summary_progress AS p USING (session_id, attempt, rank)
    GROUP BY i.session_id, i.attempt, i.rank
    -- Positions of a rank with two logs (its process went on by exec) do not name its events.
    HAVING count(*) = 1
),
behind AS (
    SELECT * FROM known WHERE last_sequence > greatest(seq_from, -1) + CASE WHEN final THEN 0 ELSE $least END
),
ended AS (
    SELECT session_id, attempt, rank, s.seq, row_number() OVER (
        PARTITION BY session_id, attempt, rank ORDER BY s.seq DESC
    ) AS place
    FROM behind AS b
    INNER JOIN step AS s USING (session_id, attempt, rank)
    WHERE NOT b.final AND s.seq > b.seq_from AND s.seq > (SELECT min(seq_from) FROM behind)
),
settled AS (
    SELECT
        b.*,
        CASE
            WHEN b.final THEN b.last_sequence
            ELSE greatest(coalesce(e.seq, -1), b.last_sequence - $events_back)
        END AS seq_settled
    FROM behind AS b
    LEFT JOIN (FROM ended WHERE place = $steps_back + 1) AS e USING (session_id, attempt, rank)
)
SELECT
    session_id,
    attempt,
    rank,
    seq_from,
    least(seq_settled, greatest(seq_from, -1) + $of_pass) AS seq_upto,
    final AND seq_upto = last_sequence AS final
FROM settled
CROSS JOIN unstreamed
WHERE seq_settled > greatest(seq_from, -1) + CASE WHEN final THEN 0 ELSE $least END
ORDER BY seq_upto - greatest(seq_from, -1) DESC, session_id, attempt, rank;
