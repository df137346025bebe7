-- Question: What was each rank told by rankmem control, by whom, and what came of it?
-- Columns:
--   session_id, attempt, rank: who was told
--   order_id: the order; one for all ranks that were told
--   what: start, stop, full, summary or auto
--   step_first: from this step on; the same for all ranks
--   step_last: up to this step, then as before; NULL: for good
--   state: waiting (no step from step_first on has begun), applied, over (its last step has ended, or a later order
--     has ended it before), refused (nothing changes: the rank's steps are calls of the model, which only full detail
--     sees), obstacle (the rank cannot follow it)
--   applied_step: the first step recorded so; NULL before
--   is_late: true if that is a later step than ordered, since the rank learned of it too late
--   over_step: the first step that it says nothing of any more; NULL where it is not over
--   asked_by: who asked, as the client says, and the address it came from
--   asked_ns (ns since 1970): when, by the aggregator's clock
--   asked_utc: the same, readable
--   obstacle: why the rank cannot follow it, in words
-- Scatter: hosts
CREATE OR REPLACE VIEW control AS
SELECT
    o.session_id,
    o.attempt,
    o.rank,
    o.order_id,
    any_value(o.what) AS what,
    any_value(o.step_first) AS step_first,
    any_value(o.step_last) AS step_last,
    CASE
        WHEN any_value(o.obstacle) IS NOT NULL THEN 'obstacle'
        WHEN bool_or(c.outcome = 'refused') THEN 'refused'
        WHEN bool_or(c.outcome = 'over') THEN 'over'
        WHEN bool_or(c.outcome = 'applied') THEN 'applied'
        ELSE 'waiting'
    END AS state,
    min(c.step) FILTER (c.outcome = 'applied') AS applied_step,
    min(c.step) FILTER (c.outcome IN ('applied', 'over')) > any_value(o.step_first) AS is_late,
    min(c.step) FILTER (c.outcome = 'over') AS over_step,
    any_value(o.asked_by) AS asked_by,
    any_value(o.asked_ns) AS asked_ns,
    utc_of(any_value(o.asked_ns)) AS asked_utc,
    any_value(o.obstacle) AS obstacle
FROM control_order AS o
LEFT JOIN control_change AS c USING (session_id, attempt, rank, order_id)
GROUP BY o.session_id, o.attempt, o.rank, o.order_id;

COMMENT ON VIEW control IS 'What each rank was told by rankmem control, and what came of it.';
