-- Question: Which devices of which ranks hold anything, with or without events?
-- Parameters:
--   session (text): session id
-- Columns:
--   attempt, rank, device: the device
SELECT DISTINCT attempt, rank, device
FROM (
    SELECT session_id, attempt, rank, device FROM allocation_record
    UNION ALL
    SELECT session_id, attempt, rank, device FROM older_segment
)
WHERE session_id = $session
ORDER BY rank, attempt, device;
