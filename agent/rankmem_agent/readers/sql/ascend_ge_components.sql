-- Question: Which text does a component of NPU_OP_MEM stand for?
SELECT r.component, coalesce(s.value, r.component)
FROM (SELECT DISTINCT component FROM NPU_OP_MEM) AS r
LEFT JOIN STRING_IDS AS s ON s.id = r.component
ORDER BY r.component
