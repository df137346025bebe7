-- Question: What did each training step hold, and what was the model given in it?
-- Parameters:
--   session (text): session id
--   arguments (JSON text): those of the model's tensors that count in input_elements and inputs, a list of names; NULL for all
-- Columns:
--   attempt, rank, device, device_type: whose
--   step: number of the step, from 0
--   peak_seq: the first event after which its peak stood
--   peak_bytes (bytes): highest requested bytes after an event in it
--   held_bytes (bytes): requested bytes after its last event
--   allocated_bytes (bytes): requested bytes of the blocks allocated in it
--   num_allocations: how many
--   input_bytes (bytes): of the largest call of the model in it that counts, as model_input says; NULL: unknown
--   input_elements (count): of the largest of these calls by the elements of the arguments that count; NULL: unknown
--   inputs: shapes of these calls' tensors as text, with their types if all arguments count, and the number of calls; NULL
--     where they are not known in full
--   calls_without_grad: true if there are calls that do not count, as of a validation
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
given_tensor AS (
    SELECT
        *,
        list_product(list_transform(regexp_extract_all(shape, '\d+'), lambda length: TRY_CAST(length AS DOUBLE))) AS elements
    FROM (
        SELECT
            *,
            CASE
                WHEN $arguments::VARCHAR IS NULL THEN argument || ' ' || dtype
                ELSE list_position($arguments::VARCHAR::JSON::VARCHAR[], argument)::VARCHAR
            END AS name
        FROM model_input($session)
    )
),
call AS (
    SELECT
        attempt,
        rank,
        step,
        seq,
        is_counted,
        max(call_bytes) AS call_bytes,
        max(num_left_out) AS num_left_out,
        -- A scalar has one element.
        CASE
            WHEN max(num_left_out) = 0 AND count(shape) = count(argument)
                THEN sum(coalesce(elements, 1)) FILTER (WHERE name IS NOT NULL)
        END AS call_elements,
        string_agg(name || shape, ', ' ORDER BY name) AS shapes
    FROM given_tensor
    GROUP BY attempt, rank, step, seq, is_counted
),
given AS (
    SELECT
        attempt,
        rank,
        step,
        max(call_bytes) FILTER (WHERE is_counted) AS input_bytes,
        CASE
            WHEN bool_or(is_counted)
                AND count(call_elements) FILTER (WHERE is_counted) = count(*) FILTER (WHERE is_counted)
                THEN least(max(call_elements) FILTER (WHERE is_counted), 9e18)::BIGINT
        END AS input_elements,
        CASE
            WHEN max(num_left_out) FILTER (WHERE is_counted) = 0
                AND count(shapes) FILTER (WHERE is_counted) = count(*) FILTER (WHERE is_counted)
                THEN count(*) FILTER (WHERE is_counted) || ': ' || string_agg(shapes, '; ' ORDER BY seq) FILTER (WHERE is_counted)
        END AS inputs,
        bool_or(NOT is_counted) AS calls_without_grad
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
    g.input_elements,
    g.inputs,
    coalesce(g.calls_without_grad, false) AS calls_without_grad,
    b.batch_bytes
FROM course AS c
-- What came after the last step has no row.
INNER JOIN training_step($session) AS t USING (attempt, rank, step)
LEFT JOIN given AS g USING (attempt, rank, step)
LEFT JOIN batch AS b USING (attempt, rank, step)
ORDER BY attempt, rank, device, step;
