-- Question: The same as ascend_records, of databases that write names with underscores.
SELECT time_stamp, total_allocated, total_reserved, total_active, stream_ptr, component, device_id
FROM MEMORY_RECORD
ORDER BY rowid
