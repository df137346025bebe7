-- Question: which call launched each kernel of a process, by their correlation id?
-- Parameter: process.
-- Columns: place of the kernel; start, end and thread (serialized) of the call, NULL without one.
-- Order: the recording's. A kernel with several calls comes several times.
SELECT k.rowid, r.start, r.end, r.globalTid
FROM CUPTI_ACTIVITY_KIND_KERNEL AS k
LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r
    ON r.correlationId = k.correlationId AND r.globalTid >> 24 = :process
WHERE k.globalPid >> 24 = :process
ORDER BY k.rowid, r.rowid
