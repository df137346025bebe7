-- Question: How much did each operator allocate over a session?
-- Parameters:
--   of_session: session id
-- Columns:
--   attempt, rank, device, device_type: whose
--   operator: the operator call that allocated; NULL outside of calls
--   allocated_bytes (bytes): allocated in all its calls, blocks older than the recording left out
--   num_allocations: how many
--   largest_bytes (bytes): the largest of them
--   mean_duration_ns (ns): mean life of the blocks that ended
CREATE OR REPLACE MACRO operator_total(of_session) AS TABLE
SELECT
    attempt,
    rank,
    device,
    split_part(device, ':', 1) AS device_type,
    operator,
    sum(size_bytes)::BIGINT AS allocated_bytes,
    count(*) AS num_allocations,
    max(size_bytes) AS largest_bytes,
    round(avg(duration_ns))::BIGINT AS mean_duration_ns
FROM allocation
WHERE session_id = of_session AND NOT preexisting
GROUP BY attempt, rank, device, operator
ORDER BY rank, device, attempt, allocated_bytes DESC, operator;

COMMENT ON MACRO TABLE operator_total IS 'Bytes and blocks allocated over a session, by operator.';
