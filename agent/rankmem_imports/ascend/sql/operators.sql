-- Question: Which block did each operator allocate, and when was it released?
SELECT
    allocationTime, releaseTime, activeReleaseTime, size,
    allocationTotalAllocated, allocationTotalReserved, allocationTotalActive,
    releaseTotalAllocated, releaseTotalReserved, releaseTotalActive,
    streamPtr, name, deviceId
FROM OP_MEMORY
ORDER BY rowid
