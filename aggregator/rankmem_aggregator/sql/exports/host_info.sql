-- Question: Which hosts ran the ranks?
-- Parameters:
--   session (text): session id
--   ranks (text): global ranks, separated by commas; NULL for all
-- Columns:
--   all columns of the table host_info
SELECT h.*
FROM host_info AS h
WHERE h.host_uid IN (
    SELECT host_uid
    FROM rank_info
    WHERE session_id = $session
        AND ($ranks::VARCHAR IS NULL OR list_contains(string_split($ranks, ','), rank::VARCHAR))
)
ORDER BY h.host_uid;
