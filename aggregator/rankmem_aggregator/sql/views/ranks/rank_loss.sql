-- Question: How much of each rank's log is missing, and is what we have of it complete?
-- Columns:
--   session_id, attempt, rank: who
--   gaps: holes in its log; each is a row of gap
--   records_lost: records of the log known to be missing: an event is one, and so are a call, a tag and a sample;
--     NULL: some, their number is not known
--   events_lost: at most so many allocator events are missing: as many as records_lost, some of which were no events
--   first_lost_seq: the first missing position from which on a total may be wrong, for a block may have come or gone
--     unseen; NULL: none. What ends a recording, or was sent again after it, makes no later total wrong
--   complete: true if nothing is missing
-- Scatter: hosts
CREATE OR REPLACE VIEW rank_loss AS
WITH hole AS (
    -- Names that are missing are no events. Where all is missing from some instant on, or the source's own history
    -- was overwritten, the number is not known.
    SELECT
        session_id,
        attempt,
        rank,
        count(*) AS gaps,
        CASE
            WHEN NOT coalesce(bool_or(to_end), false) AND NOT bool_or(why = 'ring_overwritten')
                THEN sum(records)::BIGINT
        END AS records,
        min(sequence_first) FILTER (to_end IS DISTINCT FROM true AND why <> 'other_database') AS first_lost_seq
    FROM gap
    WHERE why <> 'hooks_off'
    GROUP BY session_id, attempt, rank
)
SELECT
    r.session_id,
    r.attempt,
    r.rank,
    coalesce(g.gaps, 0) AS gaps,
    CASE WHEN g.gaps IS NULL THEN coalesce(r.events_lost, 0) ELSE g.records END AS records_lost,
    records_lost AS events_lost,
    g.first_lost_seq,
    -- A rank whose host never reported how it ended may have done more than is stored.
    coalesce(r.complete, false) AND g.gaps IS NULL AND NOT (r.end_reason IS NULL AND o.is_over)
        AS complete
FROM rank_info AS r
LEFT JOIN rank_over AS o USING (session_id, attempt, rank)
LEFT JOIN hole AS g USING (session_id, attempt, rank);

COMMENT ON VIEW rank_loss IS 'What is missing of each rank''s log, in records, and whether it is complete.';
