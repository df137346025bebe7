-- Question: Which blocks did a session make, without asking when they ended?
-- Parameters:
--   of_session: session id
--   of_group: category, where the blocks' last meaning is wanted; anything else spares the look for it
-- Columns:
--   attempt, rank, device: whose
--   allocation_id, size_bytes, stream, component, preexisting: as in the view allocation
--   operator, module, phase, step, annotation, stack_id, forward_stack_id: likewise
--   category: what the bytes meant last; of other groupings what they meant first
CREATE OR REPLACE MACRO made_block(of_session, of_group) AS TABLE
WITH last_meaning AS (
    SELECT attempt, rank, device, allocation_id, arg_max(category, (seq, time_ns)) AS category
    FROM category_change
    WHERE session_id = of_session AND of_group = 'category'
    GROUP BY ALL
)
SELECT
    r.attempt,
    r.rank,
    r.device,
    r.allocation_id,
    r.size_bytes,
    r.stream,
    r.component,
    r.operator,
    r.module,
    r.phase,
    r.step,
    r.annotation,
    r.stack_id,
    r.forward_stack_id,
    r.preexisting,
    coalesce(c.category, r.category, 'unknown') AS category
FROM allocation_record AS r
LEFT JOIN last_meaning AS c USING (attempt, rank, device, allocation_id)
WHERE r.session_id = of_session;

COMMENT ON MACRO TABLE made_block IS 'The blocks of a session without their ends: for sums over the whole recording.';
