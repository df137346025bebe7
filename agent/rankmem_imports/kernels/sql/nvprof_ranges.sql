-- Question: which ranges (flag 2 opens one, flag 4 closes it) does each thread have?
-- Columns: thread as process (4 bytes) and thread (8 bytes), start, end, place of the opening marker, text.
-- Order: by thread, then start.
SELECT a.objectId, a.timestamp, b.timestamp, a._id_, s.value
FROM CUPTI_ACTIVITY_KIND_MARKER AS a
JOIN CUPTI_ACTIVITY_KIND_MARKER AS b ON b.id = a.id AND b.flags = 4
LEFT JOIN StringTable AS s ON s._id_ = a.name
WHERE a.flags = 2
ORDER BY a.objectId, a.timestamp, a._id_
