-- Question: What is missing of a session's ranks, in a database of a version without the view incompleteness?
-- Parameters:
--   session (text): session id
-- Columns:
--   all columns of the view incompleteness
-- Scatter: hosts
SELECT
    session_id,
    attempt,
    rank,
    'not_complete' AS why,
    'events' AS what,
    NULL::VARCHAR AS detail,
    NULL::BIGINT AS since_ns,
    NULL::TIMESTAMP AS since_utc,
    events_lost AS records,
    true AS is_bytes,
    CASE
        WHEN events_lost > 0 THEN format('{:,}', events_lost) || ' events are missing; the table gap says why'
        ELSE format('{:,}', unexplained_bytes)
            || ' bytes are unexplained: the recorded events differ from the allocator''s own figure by that much'
    END AS sentence
FROM rank_overview
WHERE session_id = $session AND NOT complete AND (events_lost > 0 OR coalesce(unexplained_bytes, 0) <> 0)
UNION ALL BY NAME
SELECT
    * EXCLUDE (state),
    'events' AS what,
    true AS is_bytes,
    CASE WHEN state = 'awaited' THEN 'awaited' ELSE 'never_reported' END AS why,
    CASE WHEN state = 'awaited' THEN 'has not reported yet' ELSE 'never reported: nothing from it is stored' END
        AS sentence
FROM rank_missing
WHERE session_id = $session
ORDER BY attempt, rank;
