-- Question: the same, where the recording has no calls.
-- Parameter: process.
SELECT k.rowid, NULL, NULL, NULL
FROM CUPTI_ACTIVITY_KIND_KERNEL AS k
WHERE k.globalPid >> 24 = :process
ORDER BY k.rowid
