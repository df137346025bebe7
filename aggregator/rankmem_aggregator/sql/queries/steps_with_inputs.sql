-- Question: What did each training step hold, and what was the model given in it?
-- Parameters:
--   session (text): session id
-- Columns:
--   attempt, rank, device, device_type: whose
--   step: number of the step, from 0
--   peak_seq: the first event after which its peak stood
--   peak_bytes (bytes): highest requested bytes after an event in it
--   held_bytes (bytes): requested bytes after its last event
--   allocated_bytes (bytes): requested bytes of the blocks allocated in it
--   num_allocations: how many
--   input_bytes (bytes): of the largest call of the model in it, of those that recorded autograd if any did; NULL: unknown
--   inputs: types and shapes of these calls' tensors as text, with the number of calls; NULL where they are not known in full
--   batch_bytes (bytes): of its blocks of category input that no module made
-- Scatter: hosts
WITH course AS (
    SELECT
        attempt,
        rank,
        device,
        step,
        max(peak_bytes) AS peak_bytes,
        arg_max(peak_seq, (peak_bytes, -peak_seq)) AS peak_seq,
        arg_max(last_bytes, seq_last) AS held_bytes,
        sum(allocated_bytes)::BIGINT AS allocated_bytes,
        sum(num_allocations)::BIGINT AS num_allocations
    FROM step_bucket
    WHERE session_id = $session
    GROUP BY attempt, rank, device, step
),
call AS (
    SELECT
        attempt,
        rank,
        step,
        seq,
        with_grad,
        max(call_bytes) AS call_bytes,
        max(num_left_out) AS num_left_out,
        string_agg(argument || ' ' || dtype || shape, ', ' ORDER BY argument) AS shapes
    FROM step_input
    WHERE session_id = $session
    GROUP BY attempt, rank, step, seq, with_grad
    QUALIFY with_grad = max(with_grad) OVER (PARTITION BY attempt, rank, step)
),
given AS (
    SELECT
        attempt,
        rank,
        step,
        max(call_bytes) AS input_bytes,
        CASE
            WHEN max(num_left_out) = 0 AND count(shapes) = count(*)
                THEN count(*) || ': ' || string_agg(shapes, '; ' ORDER BY seq)
        END AS inputs
    FROM call
    GROUP BY attempt, rank, step
),
batch AS (
    SELECT attempt, rank, step, sum(size_bytes)::BIGINT AS batch_bytes
    FROM allocation_record
    WHERE session_id = $session AND category = 'input' AND module IS NULL
    GROUP BY attempt, rank, step
)
SELECT
    c.attempt,
    c.rank,
    c.device,
    split_part(c.device, ':', 1) AS device_type,
    c.step,
    c.peak_seq,
    c.peak_bytes,
    c.held_bytes,
    c.allocated_bytes,
    c.num_allocations,
    g.input_bytes,
    g.inputs,
    b.batch_bytes
FROM course AS c
-- What came after the last step has no row, nor a call of the model before a training's first step.
INNER JOIN (
    SELECT DISTINCT attempt, rank, step
    FROM (
        SELECT attempt, rank, step
        FROM step
        WHERE session_id = $session
        QUALIFY optimizer IS DISTINCT FROM 'model call'
            OR bool_and(optimizer IS NOT DISTINCT FROM 'model call') OVER (PARTITION BY attempt, rank)
    )
) AS t USING (attempt, rank, step)
LEFT JOIN given AS g USING (attempt, rank, step)
LEFT JOIN batch AS b USING (attempt, rank, step)
ORDER BY attempt, rank, device, step;
