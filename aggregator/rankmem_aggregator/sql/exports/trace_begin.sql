-- Question: When did the earliest named range or operator call begin that lasted into a range of time?
-- Parameters:
--   session (text): session id
--   ranks (text): global ranks, separated by commas; NULL for all
--   from_ns (ns, common clock): the range's beginning
-- Columns:
--   begun_ns (ns, common clock): NULL where there is none
WITH begun AS (
    SELECT session_id, attempt, rank, started_ns, ended_ns FROM operator_call WHERE session_id = $session
    UNION ALL
    SELECT session_id, attempt, rank, started_ns, ended_ns FROM marker WHERE session_id = $session
)
SELECT min(b.started_ns + coalesce(s.offset_ns, 0)) AS begun_ns
FROM begun AS b
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
WHERE ($ranks::VARCHAR IS NULL OR b.rank::VARCHAR IN (SELECT unnest(string_split($ranks, ','))))
    AND (b.ended_ns IS NULL OR b.ended_ns + coalesce(s.offset_ns, 0) >= $from_ns::BIGINT)
ORDER BY begun_ns;
