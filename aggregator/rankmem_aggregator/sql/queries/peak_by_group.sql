-- Question: How high did each group of a rank's blocks get by itself, and what did it hold at the rank's own peak?
-- Parameters:
--   session (text): session id
--   by (text): category, phase, operator, module, step or annotation; stream and component: peak_by_allocator
--   rank (count): global rank; NULL for all
-- Columns:
--   all columns of the macro peak_by_group
SELECT * FROM peak_by_group($session, $by, of_rank := $rank::INTEGER)
ORDER BY rank_peak_bytes DESC, rank, device, bytes_at_rank_peak DESC, peak_bytes DESC, group_name;
