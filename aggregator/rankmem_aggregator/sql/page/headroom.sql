-- Question: Which device could get the least more, by what is stored now?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...
--   at_most (count): rows
-- Columns:
--   rank, attempt, device: which, of the session's last attempt
--   headroom_bytes (bytes): as in rank_now; rows without it are left out
--   device_total_bytes (bytes): memory of the device
SELECT rank, attempt, device, headroom_bytes, device_total_bytes
FROM rank_now
WHERE session_id = $session AND split_part(device, ':', 1) = $device_type AND headroom_bytes IS NOT NULL
ORDER BY headroom_bytes, rank, device
LIMIT $at_most;
