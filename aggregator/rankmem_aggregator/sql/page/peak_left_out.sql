-- Question: How many ranks are in no sum over several, since their recordings have no times?
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...; NULL: of any type
-- Columns:
--   num_ranks: so many
SELECT count(DISTINCT rank) AS num_ranks
FROM rank_group($session, 'job')
WHERE NOT is_summed AND ($device_type::VARCHAR IS NULL OR split_part(device, ':', 1) = $device_type)
ORDER BY num_ranks;
