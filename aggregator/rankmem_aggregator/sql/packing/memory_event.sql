-- Question: How does a row of memory_event stand on disk? packed/memory_event.sql is the way back.
-- 144115188075855872 is 2 to the power 57: no multiple of 64, divided by it, reaches so far from 0.
SELECT * REPLACE (
    CASE
        WHEN address & 63 = 0 THEN address // 64
        ELSE address + sign(address) * 144115188075855872
    END AS address,
    nullif(component, 'pytorch') AS component,
    CAST(size_bytes AS VARCHAR) AS size_bytes
)
FROM incoming
