-- Question: Which steps did each rank take, how high do its devices get now, and how much could they hold?
-- Parameters:
--   session (text): session id
--   rank (count): global rank; NULL for all
-- Columns:
--   attempt, rank: whose
--   device: on which it has events in steps; NULL where no step was recorded
--   steps: numbers of its steps, a list in order of their ends; empty for a rank without steps, or whose steps have no
--     place among its events
--   peak_bytes (bytes): highest requested bytes in the last third of the steps
--   device_total_bytes (bytes): of the device; NULL where it is not known
--   app_bytes (bytes): what the process held beyond the allocator in its last sample; NULL where it is not known
--   is_running: true while the rank has no end
-- Scatter: hosts
WITH ended AS (
    SELECT attempt, rank, list(step ORDER BY seq) AS steps
    FROM training_step($session, of_rank := $rank)
    WHERE seq IS NOT NULL
    GROUP BY attempt, rank
),
-- By itself: a join would copy the list for each of its steps.
late AS (SELECT attempt, rank, steps[len(steps) - len(steps) // 3] AS step FROM ended),
course AS (
    SELECT b.attempt, b.rank, b.device, max(b.peak_bytes) AS peak_bytes
    FROM step_bucket AS b
    INNER JOIN late AS l ON b.attempt = l.attempt AND b.rank = l.rank AND b.step >= l.step
    WHERE b.session_id = $session
    GROUP BY b.attempt, b.rank, b.device
),
-- A device without an event in the last third of the steps holds what it held.
touched AS (
    SELECT DISTINCT attempt, rank, device
    FROM step_bucket
    WHERE session_id = $session AND ($rank::INTEGER IS NULL OR rank = $rank)
),
sampled AS (
    SELECT attempt, rank, device, arg_max(app_bytes, seq) AS app_bytes,
        arg_max(device_total_bytes, seq) AS device_total_bytes
    FROM app_curve
    WHERE session_id = $session AND ($rank::INTEGER IS NULL OR rank = $rank)
    GROUP BY attempt, rank, device
)
SELECT
    r.attempt,
    r.rank,
    t.device,
    coalesce(e.steps, []) AS steps,
    c.peak_bytes,
    coalesce(p.device_total_bytes, d.total_bytes) AS device_total_bytes,
    p.app_bytes,
    s.ended_ns IS NULL AS is_running
FROM rank_info AS r
LEFT JOIN ended AS e USING (attempt, rank)
LEFT JOIN touched AS t ON r.attempt = t.attempt AND r.rank = t.rank
LEFT JOIN course AS c ON t.attempt = c.attempt AND t.rank = c.rank AND t.device = c.device
LEFT JOIN sampled AS p ON t.attempt = p.attempt AND t.rank = p.rank AND t.device = p.device
LEFT JOIN device_info AS d
    ON d.session_id = $session AND t.attempt = d.attempt AND t.rank = d.rank AND t.device = d.device
LEFT JOIN rank_span AS s ON s.session_id = $session AND r.attempt = s.attempt AND r.rank = s.rank
WHERE r.session_id = $session AND ($rank::INTEGER IS NULL OR r.rank = $rank)
ORDER BY attempt, rank, device;
