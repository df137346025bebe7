-- Question: In how many steps of a rank were calls not observed, since the steps were known, and how are its blocks known?
-- Columns:
--   session_id, attempt, rank: who; only ranks with such steps (RANKMEM_STEADY)
--   num_steps: steps that have ended
--   steady_steps: steps in which no call was observed; one that was observed from its middle on is none of them
--   template_blocks: blocks known by a whole step, as in rank_info; likewise the next four
--   prefix_blocks: blocks known by the beginning of a step alone
--   evidence_blocks: blocks known by what was read at their allocation
--   steady_misses: times that a block came which no known step has there
--   audit_differences: places in steps where something else was observed than in the step taken as template
-- Scatter: hosts
CREATE OR REPLACE VIEW rank_steady AS
WITH steady AS (
    SELECT session_id, attempt, rank
    FROM rank_info
    WHERE template_blocks IS NOT NULL
),
ended AS (
    SELECT s.session_id, s.attempt, s.rank, max(s.step) + 1 AS num_steps
    FROM step AS s
    SEMI JOIN steady USING (session_id, attempt, rank)
    GROUP BY s.session_id, s.attempt, s.rank
),
span AS (
    SELECT
        c.session_id,
        c.attempt,
        c.rank,
        c.detail,
        c.step,
        lead(c.step) OVER (PARTITION BY c.session_id, c.attempt, c.rank ORDER BY c.seq) AS next_step
    FROM control_change AS c
    SEMI JOIN steady USING (session_id, attempt, rank)
),
unobserved AS (
    SELECT
        c.session_id,
        c.attempt,
        c.rank,
        sum(greatest(coalesce(c.next_step, e.num_steps, c.step) - c.step, 0)) AS steady_steps
    FROM span AS c
    LEFT JOIN ended AS e USING (session_id, attempt, rank)
    WHERE c.detail = 'steady'
    GROUP BY c.session_id, c.attempt, c.rank
)
SELECT
    r.session_id,
    r.attempt,
    r.rank,
    coalesce(e.num_steps, 0)::BIGINT AS num_steps,
    coalesce(u.steady_steps, 0)::BIGINT AS steady_steps,
    r.template_blocks,
    r.prefix_blocks,
    r.evidence_blocks,
    r.steady_misses,
    r.audit_differences
FROM rank_info AS r
LEFT JOIN unobserved AS u USING (session_id, attempt, rank)
LEFT JOIN ended AS e USING (session_id, attempt, rank)
CROSS JOIN unstreamed
WHERE r.template_blocks IS NOT NULL;

COMMENT ON VIEW rank_steady IS 'Ranks with steps that were not observed since they were known: how many, and how their blocks are known.';
