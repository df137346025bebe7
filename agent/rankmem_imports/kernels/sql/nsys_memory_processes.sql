-- Question: which processes allocated memory of a device?
-- Columns: the process's serialized id (machine and process, without the thread's 24 bits).
SELECT DISTINCT globalPid >> 24 FROM CUDA_GPU_MEMORY_USAGE_EVENTS ORDER BY 1
