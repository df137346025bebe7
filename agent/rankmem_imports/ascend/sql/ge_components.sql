-- Question: Which text does a component of NPU_OP_MEM stand for?
SELECT r.component, coalesce(s.value, CASE WHEN typeof(r.component) = 'text' THEN r.component END)
FROM (SELECT DISTINCT component FROM NPU_OP_MEM) AS r
LEFT JOIN STRING_IDS AS s ON s.id = r.component
ORDER BY r.component
