-- Question: what did a process run on its devices?
-- Parameter: process, as nsys_processes gives it.
-- Columns: place, correlation id, start, end, device, stream, grid (three), block (three), name.
-- Order: the recording's.
SELECT
    k.rowid, k.correlationId, k.start, k.end, k.deviceId, k.streamId,
    k.gridX, k.gridY, k.gridZ, k.blockX, k.blockY, k.blockZ, s.value
FROM CUPTI_ACTIVITY_KIND_KERNEL AS k
LEFT JOIN StringIds AS s ON s.id = k.demangledName
WHERE k.globalPid >> 24 = :process
ORDER BY k.rowid
