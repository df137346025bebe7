-- Question: How high did each group of ranks get together, and how high does the sum of their own peaks reach?
-- Parameters:
--   session (text): session id
--   by (text): host, device, dp, tp, pp, cp, ep or job
-- Columns:
--   all columns of the macro peak_by_ranks
SELECT * FROM peak_by_ranks($session, $by)
ORDER BY peak_bytes DESC, device_type, group_name;
