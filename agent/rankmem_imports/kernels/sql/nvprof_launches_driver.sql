-- Question: which launch belongs to each kernel, by their correlation id, where there is a table of driver calls?
-- Columns: place of the kernel; start and end of the launch, its process and thread (signed); NULL without one.
-- Order: the recording's. A kernel with several launches comes several times. The runtime's call wins.
SELECT
    k._id_,
    coalesce(r.start, d.start),
    coalesce(r.end, d.end),
    coalesce(r.processId, d.processId),
    coalesce(r.threadId, d.threadId)
FROM CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL AS k
LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r ON r.correlationId = k.correlationId
LEFT JOIN CUPTI_ACTIVITY_KIND_DRIVER AS d ON d.correlationId = k.correlationId
ORDER BY k._id_, r._id_, d._id_
