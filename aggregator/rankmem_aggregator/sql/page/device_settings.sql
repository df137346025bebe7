-- Question: Which allocator served each device of each rank, with which settings?
-- Parameters:
--   session (text): session id
-- Columns:
--   attempt, rank, device: which
--   allocator, settings: as in device_info
SELECT attempt, rank, device, allocator, settings
FROM device_info
WHERE session_id = $session
ORDER BY attempt, rank, device;
