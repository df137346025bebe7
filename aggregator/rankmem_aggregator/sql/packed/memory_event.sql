-- Question: What does a row of memory_event on disk mean? The way back of packing/memory_event.sql.
CREATE OR REPLACE VIEW memory_event AS
SELECT * REPLACE (
    CASE
        WHEN address BETWEEN -144115188075855872 AND 144115188075855871 THEN address * 64
        ELSE address - sign(address) * 144115188075855872
    END AS address,
    coalesce(component, 'pytorch') AS component,
    -- It never fails. DuckDB casts each value of a dictionary once only where a failure raises no error.
    try_cast(size_bytes AS BIGINT) AS size_bytes
)
FROM packed.memory_event;
