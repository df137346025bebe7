-- Question: Which sessions does this text mean, as in session_match, and what does each report of itself?
-- Parameters:
--   session (text): what the user gave; NULL for the newest
-- Columns:
--   session_id, name, source, state, started_ns, events, detail, not_recorded, was_reduced: as in the view session_facts
--   match: 0 its id, 1 its name, 2 the beginning of its id
-- Scatter: none
SELECT
    f.session_id,
    f.name,
    f.source,
    f.state,
    f.started_ns,
    f.events,
    f.detail,
    f.not_recorded,
    f.was_reduced,
    CASE WHEN upper(s.session_id) = upper($session) THEN 0 WHEN s.name = $session THEN 1 ELSE 2 END AS match
FROM session AS s
INNER JOIN session_facts AS f USING (session_id)
WHERE $session::VARCHAR IS NULL OR starts_with(upper(s.session_id), upper($session)) OR s.name = $session
ORDER BY match, s.started_at_ns DESC NULLS LAST, s.session_id DESC;
