-- Question: Which hosts ran ranks of a session?
-- Columns:
--   session_id: the job
--   host_uid, host_name, address, os: the host
--   cpu_count: processors the job may use
--   memory_bytes (bytes): physical memory
--   gpu_driver: version of the driver; NULL without one
--   num_ranks: different ranks that ran there, over all attempts
--   peak_requested_bytes (bytes): highest peak of a rank there
--   events: allocator events stored
--   records_lost: records of the logs known to be missing, of events and of all else; NULL: their number is not known
--   events_lost: at most so many allocator events are missing; as in rank_loss
--   clock_error_ns (ns): bound of the clock offset, the largest over the attempts
-- Scatter: none
CREATE OR REPLACE VIEW host_overview AS
SELECT
    r.session_id,
    r.host_uid,
    h.host_name,
    h.address,
    h.os,
    h.cpu_count,
    h.memory_bytes,
    h.gpu_driver,
    count(DISTINCT r.rank) AS num_ranks,
    max(r.peak_requested_bytes) AS peak_requested_bytes,
    sum(r.events)::BIGINT AS events,
    CASE WHEN count(*) = count(r.records_lost) THEN sum(r.records_lost)::BIGINT END AS records_lost,
    CASE WHEN count(*) = count(r.events_lost) THEN sum(r.events_lost)::BIGINT END AS events_lost,
    max(r.clock_error_ns) AS clock_error_ns
FROM rank_overview AS r
LEFT JOIN host_info AS h ON r.host_uid = h.host_uid
GROUP BY ALL;

COMMENT ON VIEW host_overview IS 'A host that ran ranks of a session.';
