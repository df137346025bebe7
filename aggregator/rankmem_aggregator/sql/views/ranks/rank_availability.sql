-- Question: Of each rank whose events stayed on its host: how many stretches of its log are there, here, and gone?
-- Columns:
--   session_id, attempt, rank: who
--   host_name: its host
--   stretches: of its log that stayed on the host at first
--   here: of them those that came since; where all did, every question about the rank has its answer
--   on_host: of them those that did not come
--   gone: of them those that the host has no longer, so that they never come
--   events_on_host: events in those on the host
--   bytes_on_host (bytes): of their rows as they would be sent
-- Scatter: hosts
CREATE OR REPLACE VIEW rank_availability AS
SELECT
    a.session_id,
    a.attempt,
    a.rank,
    any_value(h.host_name) AS host_name,
    count(*) AS stretches,
    count(*) FILTER (a.is_here) AS here,
    count(*) FILTER (NOT a.is_here AND NOT a.is_gone) AS on_host,
    count(*) FILTER (NOT a.is_here AND a.is_gone) AS gone,
    coalesce(sum(a.events) FILTER (NOT a.is_here AND NOT a.is_gone), 0)::BIGINT AS events_on_host,
    coalesce(sum(a.size_bytes) FILTER (NOT a.is_here AND NOT a.is_gone), 0)::BIGINT AS bytes_on_host
FROM (
    SELECT
        session_id,
        attempt,
        rank,
        sequence_first,
        sequence_last,
        bool_or(place = 'here') AS is_here,
        bool_or(place = 'gone') AS is_gone,
        max(host_uid) AS host_uid,
        max(events) AS events,
        max(size_bytes) AS size_bytes
    FROM availability
    GROUP BY session_id, attempt, rank, sequence_first, sequence_last
) AS a
LEFT JOIN host_info AS h ON a.host_uid = h.host_uid
GROUP BY a.session_id, a.attempt, a.rank;

COMMENT ON VIEW rank_availability IS 'Of ranks whose events stayed on their hosts, what came since.';
