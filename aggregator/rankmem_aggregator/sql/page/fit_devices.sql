-- Question: On devices of which types does a session have events? Accelerators first, the highest first.
-- Parameters:
--   session (text): session id
-- Columns:
--   device_type: cpu, cuda, ...
SELECT split_part(device, ':', 1) AS device_type
FROM memory_cell($session, 1024)
GROUP BY device_type
ORDER BY device_type IN ('cpu', 'pinned'), max(peak_bytes) DESC, device_type;
