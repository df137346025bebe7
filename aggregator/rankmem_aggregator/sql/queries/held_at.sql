-- Question: What did every rank hold at one instant? The largest first.
-- Parameters:
--   session (text): session id
--   time_ns (ns, common clock): the instant
-- Columns:
--   all columns of the macro held_at
SELECT * FROM held_at($session, $time_ns)
ORDER BY requested_bytes DESC, attempt, rank, device;
