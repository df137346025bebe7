-- Question: How high did each rank stand in each training step, and what did it leave behind? Long recordings in bins.
-- Parameters:
--   session (text): session id
--   device_type (text): cpu, cuda, ...
--   attempt (count): which start of the workers; NULL: the last that has steps
--   num_bins (count): bins of steps at most; where there are no more steps than that, a bin is a step
-- Columns:
--   attempt, rank, device: a device of a rank; of a rank with several of the type the one that stood highest
--   bin: the bin, from 0
--   first_step, last_step: the steps in it
--   peak_bytes (bytes): highest requested bytes in it
--   end_bytes (bytes): requested bytes after the last event of its last step
WITH bucket AS MATERIALIZED (
    SELECT attempt, rank, device, step, peak_bytes, last_bytes, seq_last
    FROM step_bucket
    WHERE session_id = $session
        AND split_part(device, ':', 1) = $device_type
        AND attempt = coalesce($attempt::INTEGER, (
            SELECT max(attempt) FROM step_bucket
            WHERE session_id = $session AND split_part(device, ':', 1) = $device_type
        ))
),
highest AS MATERIALIZED (
    SELECT DISTINCT ON (rank) rank, device
    FROM (SELECT rank, device, max(peak_bytes) AS peak_bytes FROM bucket GROUP BY rank, device)
    ORDER BY rank, peak_bytes DESC, device
),
span AS MATERIALIZED (
    SELECT min(step) AS first_step, max(step) - min(step) + 1 AS num_steps FROM bucket
)
SELECT
    b.attempt,
    b.rank,
    b.device,
    ((b.step - s.first_step) * least($num_bins, s.num_steps) // s.num_steps)::INTEGER AS bin,
    min(b.step) AS first_step,
    max(b.step) AS last_step,
    max(b.peak_bytes) AS peak_bytes,
    arg_max(b.last_bytes, b.seq_last) AS end_bytes
FROM bucket AS b
INNER JOIN highest AS h USING (rank, device)
CROSS JOIN span AS s
CROSS JOIN unstreamed
GROUP BY ALL
ORDER BY b.rank, bin;
