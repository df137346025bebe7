-- Question: which threads of a process have ranges?
-- Parameter: process.
SELECT DISTINCT globalTid FROM NVTX_EVENTS WHERE globalTid >> 24 = :process ORDER BY 1
