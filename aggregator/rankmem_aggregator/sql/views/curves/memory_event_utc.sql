-- Question: Which events were there, on the clock that all ranks share and readable?
-- Columns:
--   all columns of memory_event, with time_ns on the session's common clock
--   time_utc: the same instant as TIMESTAMP in UTC
--   host_uid: the host of the rank
-- Scatter: hosts
CREATE OR REPLACE VIEW memory_event_utc AS
SELECT
    e.* REPLACE (e.time_ns + coalesce(s.offset_ns, 0) AS time_ns),
    utc_of(e.time_ns + coalesce(s.offset_ns, 0)) AS time_utc,
    s.host_uid
FROM memory_event AS e
LEFT JOIN rank_span AS s USING (session_id, attempt, rank);

COMMENT ON VIEW memory_event_utc IS 'memory_event with its time on the session''s common clock, also as TIMESTAMP in UTC.';
