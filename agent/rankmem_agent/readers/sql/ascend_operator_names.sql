-- Question: Which text does a name of OP_MEMORY stand for?
SELECT o.name, coalesce(s.value, o.name)
FROM (SELECT DISTINCT name FROM OP_MEMORY) AS o
LEFT JOIN STRING_IDS AS s ON s.id = o.name
ORDER BY o.name
