-- Question: What did each component reserve, sample by sample?
SELECT timestampNs, totalReserved, moduleId, deviceId FROM NPU_MODULE_MEM ORDER BY rowid
