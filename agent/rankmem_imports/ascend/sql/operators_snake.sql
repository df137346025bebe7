-- Question: The same as ascend_operators, of databases that write names with underscores.
SELECT
    allocation_time, release_time, active_release_time, size,
    allocation_total_allocated, allocation_total_reserved, allocation_total_active,
    release_total_allocated, release_total_reserved, release_total_active,
    stream_ptr, name, device_id
FROM OP_MEMORY
ORDER BY rowid
