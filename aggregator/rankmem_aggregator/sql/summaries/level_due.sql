-- Question: Which ranks have rows of memory_bucket that are not in memory_level yet, and up to where?
-- Parameters:
--   least (count): fewer positions of a rank that runs are not worth a row
-- Columns:
--   session_id, attempt, rank: who
--   seq_from: up to here they are in it; -4611686018427387904: none are
--   seq_upto: up to here all are stored: rows of memory_bucket lie within 64 positions each, of one seq // 64
--   final: true if nothing comes after
WITH known AS (
    SELECT
        i.session_id,
        i.attempt,
        i.rank,
        bool_and(i.final) AS final,
        max(i.last_sequence) AS last_sequence,
        coalesce(any_value(p.seq), -4611686018427387904) AS seq_from,
        coalesce(any_value(p.final), false) AS is_done
    FROM ingest_progress AS i
    LEFT JOIN level_progress AS p USING (session_id, attempt, rank)
    GROUP BY i.session_id, i.attempt, i.rank
    -- As in due.sql: positions of a rank with two logs do not name its events.
    HAVING count(*) = 1
),
settled AS (
    SELECT *, CASE WHEN final THEN last_sequence | 63 ELSE ((last_sequence + 1) >> 6 << 6) - 1 END AS seq_upto
    FROM known
    WHERE NOT is_done
)
SELECT session_id, attempt, rank, seq_from, seq_upto, final
FROM settled
WHERE final OR seq_upto >= greatest(seq_from, -1) + $least
-- Those that are furthest behind first: so all of a job go on together, as they lie in the file.
ORDER BY session_id, seq_from, attempt, rank;
