-- Question: How many blocks and operator calls of each size does a range of time have?
-- Parameters:
--   session (text): session id
--   ranks (text): global ranks, separated by commas; NULL for all
--   from_ns, until_ns (ns, common clock): the range
-- Columns:
--   size_bytes (bytes): of a block; or allocated in a call
--   num_blocks: blocks made in the range, or older than the recording
--   num_calls: calls begun in it
WITH counted AS (
    SELECT a.size_bytes, 1 AS blocks, 0 AS calls, a.rank,
        CASE WHEN NOT a.preexisting THEN a.allocated_ns + coalesce(s.offset_ns, 0) END AS time_ns
    FROM allocation_record AS a
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
    WHERE a.session_id = $session
    UNION ALL
    SELECT coalesce(c.allocated_bytes, 0), 0, 1, c.rank, c.started_ns + coalesce(s.offset_ns, 0)
    FROM operator_call AS c
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
    WHERE c.session_id = $session
)
SELECT size_bytes, sum(blocks)::BIGINT AS num_blocks, sum(calls)::BIGINT AS num_calls
FROM counted
WHERE ($ranks::VARCHAR IS NULL OR list_contains(string_split($ranks, ','), rank::VARCHAR))
    AND (time_ns IS NULL OR time_ns BETWEEN $from_ns AND $until_ns)
GROUP BY size_bytes
ORDER BY size_bytes DESC;
