-- Question: which NVTX ranges with an end does each thread of a process have?
-- Parameter: process.
-- Columns: thread (serialized), start, end, place, text.
-- Order: by thread, then start.
SELECT n.globalTid, n.start, n.end, n.rowid, coalesce(n.text, s.value)
FROM NVTX_EVENTS AS n
LEFT JOIN StringIds AS s ON s.id = n.textId
WHERE n.end IS NOT NULL AND n.globalTid >> 24 = :process
ORDER BY n.globalTid, n.start, n.rowid
