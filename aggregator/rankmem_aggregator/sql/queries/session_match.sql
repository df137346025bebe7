-- Question: Which sessions does this text mean: an id, the beginning of one, or a name?
-- Parameters:
--   session (text): what the user gave; NULL for the newest
-- Columns:
--   session_id, name: the session
--   match: 0 its id, 1 its name, 2 the beginning of its id
-- Scatter: none
SELECT
    session_id,
    name,
    CASE WHEN upper(session_id) = upper($session) THEN 0 WHEN name = $session THEN 1 ELSE 2 END AS match
FROM session
WHERE $session::VARCHAR IS NULL OR starts_with(upper(session_id), upper($session)) OR name = $session
ORDER BY match, started_at_ns DESC NULLS LAST, session_id DESC;
