-- Question: which processes ran kernels?
-- Columns: the process's serialized id (machine and process, without the thread's 24 bits).
SELECT DISTINCT globalPid >> 24 FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid IS NOT NULL ORDER BY 1
