-- Question: How many ranks does a side of a comparison have?
-- Parameters:
--   session (text): session id
--   kind, value (text): of all ranks (all), of one (rank), or of those with this value of host, dp, tp, pp, cp or ep
-- Columns:
--   num_ranks: with events on any device
SELECT count(DISTINCT rank) AS num_ranks
FROM rank_group($session, $kind)
WHERE $kind = 'all' OR CASE $kind WHEN 'rank' THEN rank::VARCHAR ELSE group_name END = $value
ORDER BY num_ranks;
