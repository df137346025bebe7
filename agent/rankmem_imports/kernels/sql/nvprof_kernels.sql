-- Question: what ran on the device?
-- Columns: place, correlation id, start, end, device, stream, grid (three), block (three), mangled name.
-- Order: the recording's.
SELECT
    k._id_, k.correlationId, k.start, k.end, k.deviceId, k.streamId,
    k.gridX, k.gridY, k.gridZ, k.blockX, k.blockY, k.blockZ, s.value
FROM CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL AS k
LEFT JOIN StringTable AS s ON s._id_ = k.name
ORDER BY k._id_
