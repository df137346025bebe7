-- Question: Which stretches of the ranks' logs are not here: on their hosts, or gone?
-- Parameters:
--   session (text): session id
--   ranks (text): of these alone, separated by commas; NULL: of all
--   from_ns (ns, common clock): those with events at or after it; NULL: all
--   until_ns (ns, common clock): those with events at or before it; NULL: all
-- Columns:
--   attempt, rank: whose
--   host_uid: the host
--   spool_id: the spool by which its shipper knows it
--   sequence_first, sequence_last: the stretch
--   size_bytes (bytes): of its rows as they would be sent
--   is_gone: true if the host has it no longer
-- Scatter: none
SELECT
    a.attempt,
    a.rank,
    max(a.host_uid) AS host_uid,
    a.spool_id,
    a.sequence_first,
    a.sequence_last,
    max(a.size_bytes) AS size_bytes,
    bool_or(a.place = 'gone') AS is_gone
FROM availability AS a
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
WHERE a.session_id = $session
    AND ($ranks::VARCHAR IS NULL OR list_contains(string_split($ranks::VARCHAR, ',')::INTEGER[], a.rank))
GROUP BY a.attempt, a.rank, a.spool_id, a.sequence_first, a.sequence_last
HAVING NOT bool_or(a.place = 'here')
    AND ($from_ns::BIGINT IS NULL OR max(a.last_ns + coalesce(s.offset_ns, 0)) >= $from_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR min(a.first_ns + coalesce(s.offset_ns, 0)) <= $until_ns::BIGINT)
ORDER BY a.attempt, a.rank, a.sequence_first;
