-- Question: Which text does a name of OP_MEMORY stand for? None where its number has no text.
SELECT o.name, coalesce(s.value, CASE WHEN typeof(o.name) = 'text' THEN o.name END)
FROM (SELECT DISTINCT name FROM OP_MEMORY) AS o
LEFT JOIN STRING_IDS AS s ON s.id = o.name
ORDER BY o.name
