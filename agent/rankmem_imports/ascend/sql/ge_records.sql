-- Question: What were the totals of the graph engine, action by action? Of databases without MEMORY_RECORD.
SELECT timestampNs, totalAllocate, totalReserve, NULL, NULL, component, deviceId
FROM NPU_OP_MEM
ORDER BY timestampNs, rowid
