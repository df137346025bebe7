-- Question: What did the job allocate, and which of it was alive on all ranks at one instant?
-- Parameters:
--   of_session: session id
--   at_ns (ns, common clock): the instant
-- Columns:
--   all columns of the view allocation
--   device_type: cpu, cuda, ...
--   alive_at_time: true if it was alive then; the blocks of a process that had ended are not
-- Scatter: hosts
CREATE OR REPLACE MACRO allocation_at(of_session, at_ns) AS TABLE
SELECT
    a.*,
    split_part(a.device, ':', 1) AS device_type,
    coalesce(a.allocated_ns <= at_ns, a.preexisting)
    AND (a.freed_ns IS NULL OR a.freed_ns > at_ns)
    AND coalesce(s.started_ns <= at_ns, true)
    AND (s.ended_ns IS NULL OR s.ended_ns > at_ns) AS alive_at_time
FROM allocation AS a
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
WHERE a.session_id = of_session;

COMMENT ON MACRO TABLE allocation_at IS 'Blocks of a session, marked if alive at an instant of the common clock.';
