-- Question: What does a row of operator_call on disk mean? The way back of packing/operator_call.sql.
CREATE OR REPLACE VIEW operator_call AS
SELECT * REPLACE (
    sequence_last + coalesce(sequence_first, 0) AS sequence_last,
    ended_ns + coalesce(started_ns, 0) AS ended_ns,
    -- They never fail. DuckDB casts each value of a dictionary once only where a failure raises no error.
    try_cast(allocated_bytes AS BIGINT) AS allocated_bytes,
    try_cast(freed_bytes AS BIGINT) AS freed_bytes
)
FROM packed.operator_call;
