-- Question: How high did each stream or component of a rank get, in blocks and in segments, and the process beyond them?
-- Parameters:
--   session (text): session id
--   by (text): stream or component
--   rank (count): global rank; NULL for all
-- Columns:
--   all columns of the macro allocator_peak
SELECT * FROM allocator_peak($session, $by, of_rank := $rank::INTEGER)
ORDER BY rank_peak_bytes DESC, rank, device, is_sampled, group_name <> 'app', bytes_at_rank_peak DESC, peak_bytes DESC, group_name;
