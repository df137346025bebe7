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
-- Scatter: hosts
CREATE OR REPLACE MACRO operator_total(of_session) AS TABLE
WITH
-- Most records of blocks have their end; the few others are looked up starting from the ends.
ending AS (
    SELECT attempt, rank, device, allocation_id, max(freed_ns) AS freed_ns
    FROM allocation_end
    WHERE session_id = of_session AND freed_ns IS NOT NULL
    GROUP BY attempt, rank, device, allocation_id
),
part AS (
    SELECT
        attempt,
        rank,
        device,
        operator,
        sum(size_bytes) AS allocated_bytes,
        count(*) AS num_allocations,
        max(size_bytes) AS largest_bytes,
        sum(freed_ns - allocated_ns) AS lived_ns,
        count(freed_ns) AS num_ended
    FROM allocation_record
    WHERE session_id = of_session AND NOT preexisting
    GROUP BY attempt, rank, device, operator
    UNION ALL
    SELECT r.attempt, r.rank, r.device, r.operator, 0, 0, NULL, sum(e.freed_ns - r.allocated_ns), count(*)
    FROM allocation_record AS r
    INNER JOIN ending AS e USING (attempt, rank, device, allocation_id)
    WHERE r.session_id = of_session AND NOT r.preexisting AND r.freed_ns IS NULL
    GROUP BY r.attempt, r.rank, r.device, r.operator
)
SELECT
    attempt,
    rank,
    device,
    split_part(device, ':', 1) AS device_type,
    operator,
    sum(allocated_bytes)::BIGINT AS allocated_bytes,
    sum(num_allocations)::BIGINT AS num_allocations,
    max(largest_bytes) AS largest_bytes,
    round(sum(lived_ns) / nullif(sum(num_ended), 0))::BIGINT AS mean_duration_ns
FROM part
GROUP BY attempt, rank, device, operator
ORDER BY rank, device, attempt, allocated_bytes DESC, operator;

COMMENT ON MACRO TABLE operator_total IS 'Bytes and blocks allocated over a session, by operator.';
