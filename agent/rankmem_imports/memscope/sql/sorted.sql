-- Question: Which rows are there, by time? Columns: those of memscope_rows.Row.
SELECT * FROM row ORDER BY time_ns, rowid
