-- Question: Where does each step of a rank begin and end, how large was its input, and how high did it get?
-- Parameters:
--   session (text): session id
--   attempt (count): which start of the workers
--   rank (count): global rank
--   device (text): device type and index
-- Columns:
--   step: number of the step
--   from_seq, to_seq: of the rank's log: after the end of the step before, NULL for the first; up to its own end
--   input_bytes (bytes): of the blocks of category input that were made in it, outside of modules; 0 without any
--   call_bytes (bytes): of the largest call of the model in it that counts, as model_input says; NULL: unknown
--   inputs: argument and shape of each tensor of that call, as texts; NULL where they are not known in full
--   peak_bytes (bytes): highest requested bytes of the device after an event in it; NULL without any
--   allocated_bytes (bytes): requested bytes of the blocks allocated in it; NULL without any event
--   is_named: false where operators were not recorded in a part of it (rankmem control, detail auto)
-- Scatter: none
WITH ended AS MATERIALIZED (
    SELECT step, seq AS to_seq
    FROM training_step($session, of_rank := $rank)
    WHERE attempt = $attempt AND seq IS NOT NULL
),
given AS (
    SELECT e.step, sum(coalesce(b.requested_bytes, b.size_bytes)) AS input_bytes
    FROM allocation AS b
    ASOF INNER JOIN ended AS e ON b.allocation_id <= e.to_seq
    WHERE b.session_id = $session
        AND b.attempt = $attempt
        AND b.rank = $rank
        AND b.device = $device
        AND b.category = 'input'
        AND b.module IS NULL
        AND NOT b.preexisting
    GROUP BY e.step
),
call AS (
    SELECT
        step,
        max(call_bytes) AS call_bytes,
        CASE
            WHEN max(num_left_out) = 0 AND count(shape) = count(*) THEN list([argument, shape] ORDER BY argument)
        END AS inputs
    FROM model_input($session, of_rank := $rank)
    WHERE attempt = $attempt AND is_counted
    GROUP BY step, seq
    QUALIFY row_number() OVER (PARTITION BY step ORDER BY max(call_bytes) DESC, seq) = 1
),
high AS (
    SELECT step, max(peak_bytes) AS peak_bytes, sum(allocated_bytes)::BIGINT AS allocated_bytes
    FROM step_bucket
    WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device
    GROUP BY step
)
SELECT
    e.step,
    e.from_seq,
    e.to_seq,
    coalesce(g.input_bytes, 0)::BIGINT AS input_bytes,
    m.call_bytes,
    m.inputs,
    h.peak_bytes,
    h.allocated_bytes,
    NOT EXISTS (
        FROM detail_span AS d
        WHERE d.session_id = $session
            AND d.attempt = $attempt
            AND d.rank = $rank
            AND d.seq_first <= e.to_seq
            AND (d.seq_last IS NULL OR d.seq_last > coalesce(e.from_seq, -1))
    ) AS is_named
FROM (SELECT *, lag(to_seq) OVER (ORDER BY to_seq) AS from_seq FROM ended) AS e
LEFT JOIN given AS g USING (step)
LEFT JOIN high AS h USING (step)
LEFT JOIN call AS m USING (step)
CROSS JOIN unstreamed
ORDER BY e.to_seq, e.step;
