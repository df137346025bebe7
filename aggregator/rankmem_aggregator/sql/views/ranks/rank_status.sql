-- Question: How far is each rank stored, how far behind, and what of it is lost?
-- Columns:
--   session_id, attempt, rank: who
--   host_name: its host
--   end_reason: as in rank_info; NULL while it runs
--   ended_ns (ns, common clock): when it ended; NULL while it runs
--   final: true if its log is stored to its end: nothing more comes
--   last_event_ns (ns, common clock): its last stored event
--   stored_ns (ns, the aggregator's clock, which is the common one): when its last batch was stored
--   lag_ns (ns): from the one to the other, at least 0; NULL of an imported recording
--   last_sequence: last position of its log that is stored
--   events: allocator events stored
--   records_lost: records of the logs known to be missing, of events and of all else; NULL: their number is not known
--   events_lost: at most so many allocator events are missing; as in rank_loss
--   gaps: holes in its log; each is a row of gap
--   complete: true if nothing is missing
--   spool_bytes (bytes): of its log on its host's disk, as last reported; 0 once all of it is stored
--   sent_bytes (bytes): sent for it
--   shipper_cpu_ns (ns): CPU time of its host's shipper, all its ranks
--   num_steps, steady_steps, template_blocks, prefix_blocks, evidence_blocks, steady_misses, audit_differences: as in
--     rank_steady; NULL where every step was observed
-- Scatter: hosts
CREATE OR REPLACE VIEW rank_status AS
WITH log AS (
    -- A process that went on by exec has a second log.
    SELECT
        session_id,
        attempt,
        rank,
        arg_max(last_sequence, updated_ns) AS last_sequence,
        bool_and(final) AS final,
        max(updated_ns) AS stored_ns
    FROM ingest_progress
    GROUP BY ALL
),
held AS (
    SELECT session_id, attempt, rank, max(last_ns) AS last_ns
    FROM memory_cell(NULL, 1024)
    GROUP BY ALL
),
cost AS (
    SELECT
        session_id,
        attempt,
        rank,
        arg_max(spool_bytes, time_ns) AS spool_bytes,
        max(sent_bytes) AS sent_bytes,
        max(shipper_cpu_ns) AS shipper_cpu_ns
    FROM self_cost
    GROUP BY ALL
)
SELECT
    r.session_id,
    r.attempt,
    r.rank,
    i.host_name,
    r.end_reason,
    s.ended_ns,
    coalesce(l.final, false) AS final,
    h.last_ns + coalesce(s.offset_ns, 0) AS last_event_ns,
    l.stored_ns,
    -- greatest() of NULL and 0 would be 0.
    CASE
        WHEN e.source <> 'live' THEN NULL
        WHEN l.stored_ns < h.last_ns + coalesce(s.offset_ns, 0) THEN 0
        ELSE l.stored_ns - h.last_ns - coalesce(s.offset_ns, 0)
    END AS lag_ns,
    l.last_sequence,
    coalesce(r.events, 0) AS events,
    g.records_lost,
    g.events_lost,
    g.gaps,
    g.complete,
    CASE WHEN l.final THEN 0 ELSE c.spool_bytes END AS spool_bytes,
    c.sent_bytes,
    c.shipper_cpu_ns,
    t.num_steps,
    t.steady_steps,
    t.template_blocks,
    t.prefix_blocks,
    t.evidence_blocks,
    t.steady_misses,
    t.audit_differences
FROM rank_info AS r
LEFT JOIN log AS l USING (session_id, attempt, rank)
LEFT JOIN held AS h USING (session_id, attempt, rank)
LEFT JOIN rank_loss AS g USING (session_id, attempt, rank)
LEFT JOIN cost AS c USING (session_id, attempt, rank)
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
LEFT JOIN host_info AS i ON r.host_uid = i.host_uid
LEFT JOIN session AS e ON r.session_id = e.session_id
LEFT JOIN rank_steady AS t USING (session_id, attempt, rank);

COMMENT ON VIEW rank_status IS 'How far each rank is stored, how far behind that is, and what of it is lost.';
