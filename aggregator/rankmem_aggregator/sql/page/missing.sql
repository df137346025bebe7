-- Question: What is missing of each rank, since when, and why?
-- Parameters:
--   session (text): session id
-- Columns:
--   rank, attempt: whose
--   sentence: what is missing, in words
--   why, what, detail, since_ns, records, is_bytes: as in the view incompleteness
SELECT rank, attempt, sentence, why, what, detail, since_ns, records, is_bytes
FROM incompleteness
WHERE session_id = $session
ORDER BY is_bytes IS FALSE, rank, attempt, why, sentence;
