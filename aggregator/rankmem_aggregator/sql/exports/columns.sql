-- Question: Which columns does each table of the database have? A file of an older version has fewer.
-- Columns:
--   names (list): each column as table.column, in one row
SELECT list(table_name || '.' || column_name ORDER BY table_name, column_name) AS names
FROM information_schema.columns
WHERE table_schema = 'main'
ORDER BY names;
