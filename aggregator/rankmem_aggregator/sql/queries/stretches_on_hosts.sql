-- Question: Which stretches of the ranks' logs are on their hosts, and neither here nor gone?
-- Parameters:
--   session (text): session id
--   ranks (text): of these alone, separated by commas; NULL: of all
-- Columns:
--   attempt, rank: whose
--   host_uid: the host
--   spool_id: the spool by which its shipper knows it
--   sequence_first, sequence_last: the stretch
--   size_bytes (bytes): of its rows as they would be sent
-- Scatter: none
SELECT
    attempt,
    rank,
    max(host_uid) AS host_uid,
    spool_id,
    sequence_first,
    sequence_last,
    max(size_bytes) AS size_bytes
FROM availability
WHERE session_id = $session
    AND ($ranks::VARCHAR IS NULL OR list_contains(string_split($ranks::VARCHAR, ',')::INTEGER[], rank))
GROUP BY attempt, rank, spool_id, sequence_first, sequence_last
HAVING bool_and(place = 'host')
ORDER BY attempt, rank, sequence_first;
