-- Question: How high did each training step get, how much did it allocate, and what does memory gain from step to step?
-- Parameters:
--   of_session: session id
--   of_rank: global rank; NULL, the default, for all
-- Columns:
--   attempt, rank, device, device_type: whose
--   step: number of the step, from 0; what came after the last step has no row
--   started_ns, ended_ns (ns, common clock): from the end of the step before; NULL for the first
--   duration_ns (ns): how long it took
--   peak_bytes (bytes): highest requested bytes after an event in it
--   peak_time_ns (ns, common clock): the first such instant
--   end_bytes (bytes): requested bytes after its last event
--   allocated_bytes (bytes): requested bytes of the blocks allocated in it
--   num_allocations: how many
--   peak_growth_bytes (bytes): its peak less that of the step before
--   end_growth_bytes (bytes): what it left behind: end_bytes less that of the step before
--   optimizers: classes of the optimizers that ended it, or user
-- Scatter: hosts
CREATE OR REPLACE MACRO step_total(of_session, of_rank := NULL) AS TABLE
WITH span AS MATERIALIZED (
    SELECT
        *,
        lag(ended_ns) OVER (PARTITION BY attempt, rank ORDER BY seq_last) AS started_ns
    FROM (
        SELECT
            t.attempt,
            t.rank,
            t.step,
            max(t.seq) AS seq_last,
            max(t.ended_ns) + coalesce(any_value(s.offset_ns), 0) AS ended_ns,
            any_value(coalesce(s.offset_ns, 0)) AS offset_ns,
            list(DISTINCT t.optimizer ORDER BY t.optimizer) AS optimizers
        FROM step AS t
        LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
        WHERE t.session_id = of_session AND (of_rank IS NULL OR t.rank = of_rank)
        GROUP BY t.attempt, t.rank, t.step
    )
),
course AS (
    SELECT
        attempt,
        rank,
        device,
        step,
        max(peak_bytes) AS peak_bytes,
        arg_max(peak_ns, (peak_bytes, -peak_seq)) AS peak_time_ns,
        arg_max(last_bytes, seq_last) AS end_bytes,
        sum(allocated_bytes) AS allocated_bytes,
        sum(num_allocations) AS num_allocations
    FROM step_bucket
    WHERE session_id = of_session AND (of_rank IS NULL OR rank = of_rank)
    GROUP BY attempt, rank, device, step
)
SELECT
    c.attempt,
    c.rank,
    c.device,
    split_part(c.device, ':', 1) AS device_type,
    c.step,
    s.started_ns,
    s.ended_ns,
    s.ended_ns - s.started_ns AS duration_ns,
    c.peak_bytes,
    c.peak_time_ns + s.offset_ns AS peak_time_ns,
    c.end_bytes,
    c.allocated_bytes::BIGINT AS allocated_bytes,
    c.num_allocations::BIGINT AS num_allocations,
    c.peak_bytes - lag(c.peak_bytes) OVER track AS peak_growth_bytes,
    c.end_bytes - lag(c.end_bytes) OVER track AS end_growth_bytes,
    s.optimizers
FROM course AS c
INNER JOIN span AS s USING (attempt, rank, step)
WINDOW track AS (PARTITION BY c.attempt, c.rank, c.device ORDER BY s.seq_last)
ORDER BY c.rank, c.device, c.attempt, c.step;

COMMENT ON MACRO TABLE step_total IS 'Peak, allocated bytes and growth of each training step.';
