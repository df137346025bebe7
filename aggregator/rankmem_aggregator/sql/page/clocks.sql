-- Question: How far was each host's clock from the common one, and how sure is that?
-- Parameters:
--   session (text): session id
-- Columns:
--   host_name: the host
--   attempt: which start of the workers
--   num_ranks: on it
--   offset_ns (ns): added to its times
--   error_ns (ns): the offset is right to within this; NULL where it was never measured
--   num_estimates: how often it was measured, over all sessions of the host
SELECT
    coalesce(h.host_name, s.host_uid, 'unknown') AS host_name,
    s.attempt,
    count(*) AS num_ranks,
    any_value(s.offset_ns) AS offset_ns,
    any_value(s.error_ns) AS error_ns,
    any_value(c.num_estimates) AS num_estimates
FROM rank_span AS s
LEFT JOIN host_info AS h ON h.host_uid = s.host_uid
LEFT JOIN (SELECT host_uid, count(*) AS num_estimates FROM clock_offset GROUP BY host_uid) AS c ON c.host_uid = s.host_uid
WHERE s.session_id = $session
GROUP BY s.host_uid, h.host_name, s.attempt
ORDER BY host_name, s.host_uid, s.attempt;
