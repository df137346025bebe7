-- Question: Which sessions does this text mean, as in session_match, and what is known of each?
-- Parameters:
--   session (text): what the user gave; NULL for the newest
-- Columns:
--   all columns of the view session_overview
--   match: 0 its id, 1 its name, 2 the beginning of its id
-- Scatter: none
SELECT
    o.*,
    CASE WHEN upper(s.session_id) = upper($session) THEN 0 WHEN s.name = $session THEN 1 ELSE 2 END AS match
FROM session AS s
INNER JOIN session_overview AS o USING (session_id)
WHERE $session::VARCHAR IS NULL OR starts_with(upper(s.session_id), upper($session)) OR s.name = $session
ORDER BY match, s.started_at_ns DESC NULLS LAST, s.session_id DESC;
