-- Question: What is each component called?
SELECT id, name FROM ENUM_MODULE ORDER BY id
