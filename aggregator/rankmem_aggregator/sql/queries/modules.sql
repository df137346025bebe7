-- Question: Which modules held the memory at the peak, each with all that is within it?
-- Parameters:
--   session (text): session id
--   rank (count): global rank; NULL for all ranks added up, each at its own peak
-- Columns:
--   all columns of the macro module_at_peak
SELECT * FROM module_at_peak($session, of_rank := $rank::INTEGER)
ORDER BY device_type, string_split(module, '.') NULLS LAST;
