-- Question: the same, where the recording has no calls, or the events no correlation id.
-- Parameter: process.
SELECT
    m.rowid, m.start, m.deviceId, m.address, m.bytes, m.memKind, m.memoryOperationType, NULL, NULL, NULL
FROM CUDA_GPU_MEMORY_USAGE_EVENTS AS m
WHERE m.globalPid >> 24 = :process
ORDER BY m.start, m.rowid
