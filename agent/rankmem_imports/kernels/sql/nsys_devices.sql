-- Question: which devices are there?
-- Columns: number, bytes of memory, uuid, name.
SELECT id, totalMemory, uuid, name FROM TARGET_INFO_GPU ORDER BY id
