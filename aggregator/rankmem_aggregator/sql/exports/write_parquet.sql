-- Question: How are the rows named incoming written to a Parquet file?
-- Parameters:
--   path (text): of the file
-- Columns:
--   Count: rows written
COPY (SELECT * FROM incoming) TO $path (
    FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 9, PARQUET_VERSION v2, ROW_GROUP_SIZE 500000
);
