-- Question: What is each device called?
SELECT id, name FROM NPU_INFO ORDER BY id
