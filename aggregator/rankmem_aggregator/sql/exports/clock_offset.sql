-- Question: What is known about the clocks of the hosts?
-- Parameters:
--   session (text): session id
--   ranks (text): global ranks, separated by commas; NULL for all
-- Columns:
--   all columns of the table clock_offset
SELECT c.*
FROM clock_offset AS c
WHERE c.host_uid IN (
    SELECT host_uid
    FROM rank_info
    WHERE session_id = $session
        AND ($ranks::VARCHAR IS NULL OR list_contains(string_split($ranks, ','), rank::VARCHAR))
)
ORDER BY c.host_uid, c.time_ns;
