-- Question: which launch belongs to each kernel, by their correlation id?
-- Columns: place of the kernel; start and end of the launch, its process and thread (signed); NULL without one.
-- Order: the recording's. A kernel with several launches comes several times.
SELECT k._id_, r.start, r.end, r.processId, r.threadId
FROM CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL AS k
LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r ON r.correlationId = k.correlationId
ORDER BY k._id_, r._id_
