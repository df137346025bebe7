-- Question: How does a row of operator_call stand on disk? packed/operator_call.sql is the way back.
SELECT * REPLACE (
    sequence_last - coalesce(sequence_first, 0) AS sequence_last,
    ended_ns - coalesce(started_ns, 0) AS ended_ns,
    CAST(allocated_bytes AS VARCHAR) AS allocated_bytes,
    CAST(freed_bytes AS VARCHAR) AS freed_bytes
)
FROM incoming
