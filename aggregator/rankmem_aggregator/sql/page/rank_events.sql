-- Question: How many events does a rank have in all?
-- Parameters:
--   session (text): session id
--   rank (count): global rank
-- Columns:
--   events: of all attempts and devices
SELECT coalesce(sum(events), 0)::BIGINT AS events
FROM memory_bucket
WHERE session_id = $session AND rank = $rank
ORDER BY events;
