-- Question: what did a process allocate and free on its devices, and in which call?
-- Parameter: process.
-- Columns: place, time, device, address, bytes, kind of memory, operation (0 alloc, 1 free); start, end and
-- thread (serialized) of the call, NULL without one.
-- Order: by time, then the recording's. An event with several calls comes several times.
SELECT
    m.rowid, m.start, m.deviceId, m.address, m.bytes, m.memKind, m.memoryOperationType,
    r.start, r.end, r.globalTid
FROM CUDA_GPU_MEMORY_USAGE_EVENTS AS m
LEFT JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r
    ON r.correlationId = m.correlationId AND r.globalTid >> 24 = :process
WHERE m.globalPid >> 24 = :process
ORDER BY m.start, m.rowid, r.rowid
