-- Question: How does a row of memory_bucket stand on disk? packed/memory_bucket.sql is the way back.
SELECT * REPLACE (
    seq_last - seq_first AS seq_last,
    requested_peak_seq - seq_first AS requested_peak_seq,
    last_ns - first_ns AS last_ns,
    requested_peak_ns - first_ns AS requested_peak_ns,
    allocated_peak_bytes - requested_peak_bytes AS allocated_peak_bytes,
    allocated_last_bytes - requested_last_bytes AS allocated_last_bytes,
    active_peak_bytes - requested_peak_bytes AS active_peak_bytes,
    active_last_bytes - requested_last_bytes AS active_last_bytes,
    reserved_peak_bytes - requested_peak_bytes AS reserved_peak_bytes,
    reserved_last_bytes - requested_last_bytes AS reserved_last_bytes
)
FROM incoming
