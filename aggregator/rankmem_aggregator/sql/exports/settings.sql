-- Question: Which settings did the allocators of a rank have?
-- Parameters:
--   session (text), attempt, rank: the rank
-- Columns:
--   device: device type and index
--   settings: as text; of an imported snapshot JSON
SELECT device, settings
FROM device_info
WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND settings IS NOT NULL
ORDER BY device;
