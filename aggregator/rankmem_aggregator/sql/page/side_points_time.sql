-- Question: Which event of each device was the last by an instant?
-- Parameters:
--   session (text): session id
--   first (ns, common clock): the instant
-- Columns:
--   attempt, rank, device: a device of a rank that had begun and not ended by then
--   seq: the event
SELECT attempt, rank, device, seq
FROM held_at($session, $first::BIGINT)
ORDER BY rank, attempt, device;
