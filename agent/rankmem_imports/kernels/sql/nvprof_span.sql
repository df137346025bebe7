-- Question: when did the profile begin and end?
-- Columns: earliest start and latest end over runtime calls, kernels and markers.
SELECT min(first), max(last)
FROM (
    SELECT min(start) AS first, max(end) AS last FROM CUPTI_ACTIVITY_KIND_RUNTIME
    UNION ALL
    SELECT min(start), max(end) FROM CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL
    UNION ALL
    SELECT min(timestamp), max(timestamp) FROM CUPTI_ACTIVITY_KIND_MARKER
)
