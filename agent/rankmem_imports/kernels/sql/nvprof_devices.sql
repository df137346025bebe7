-- Question: which devices are there?
-- Columns: number, bytes of memory, uuid (16 bytes), name.
SELECT d.id, d.globalMemorySize, d.uuid, s.value
FROM CUPTI_ACTIVITY_KIND_DEVICE AS d
LEFT JOIN StringTable AS s ON s._id_ = d.name
ORDER BY d.id
