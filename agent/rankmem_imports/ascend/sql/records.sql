-- Question: What were each component's totals, record by record?
SELECT timestamp, totalAllocated, totalReserved, totalActive, streamPtr, component, deviceId
FROM MEMORY_RECORD
ORDER BY rowid
