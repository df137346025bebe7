-- Question: Is each rank over: did its host report its end, or has a later attempt begun?
-- Columns:
--   session_id, attempt, rank: who
--   is_over: true if it is. rank_span has the instant, for which it needs all clocks
-- Scatter: hosts
CREATE OR REPLACE VIEW rank_over AS
SELECT
    session_id,
    attempt,
    rank,
    -- A rank without an end of its own (its host vanished) is over when a later attempt starts: the launcher
    -- stops all workers of an attempt before it starts the next.
    ended_at_ns IS NOT NULL
    OR coalesce(attempt < max(attempt) FILTER (started_at_ns IS NOT NULL) OVER (PARTITION BY session_id), false)
        AS is_over
FROM rank_info;

COMMENT ON VIEW rank_over IS 'Whether a rank has ended, as far as is known; without the clocks that rank_span needs to say when.';
