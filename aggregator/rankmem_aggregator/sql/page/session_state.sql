-- Question: When did a session begin, has it ended, and what changes whenever anything of it does?
-- Parameters:
--   session (text): session id
-- Columns:
--   session_id: the job
--   origin_ns (ns, common clock): its start; 0 where its recording has no times
--   ended: true once every rank has ended
--   watermark (text): differs if any row of it may
SELECT
    s.session_id,
    coalesce(o.started_ns, 0) AS origin_ns,
    o.state = 'ended' AS ended,
    concat_ws('-', o.events, o.num_ranks, o.num_attempts, o.ended_ns, o.records_lost) AS watermark
FROM session AS s
LEFT JOIN session_overview AS o USING (session_id)
WHERE s.session_id = $session;
