-- Question: the same, for exports before registered texts.
-- Parameter: process.
SELECT n.globalTid, n.start, n.end, n.rowid, n.text
FROM NVTX_EVENTS AS n
WHERE n.end IS NOT NULL AND n.globalTid >> 24 = :process
ORDER BY n.globalTid, n.start, n.rowid
