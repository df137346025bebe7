-- Question: From when to when was a training step of a rank: the one of this number, or the one next to an instant?
-- Parameters:
--   session (text): session id
--   attempt, rank, device: which device
--   offset_ns (ns): added to its host's times
--   step (count): its number; NULL for the one beside at_ns
--   at_ns (ns, common clock): the instant
--   by (count): 1 for the step after the one that the instant lies in, -1 for the one before it
-- Columns:
--   step: its number
--   begin_ns, end_ns (ns, common clock): it begins where the one before ended, the first with the process
--   seq: the event of the device at which it stood highest; NULL where it has none in the step
WITH step_end AS (
    SELECT step, max(ended_ns) + $offset_ns AS end_ns
    FROM step
    WHERE session_id = $session AND attempt = $attempt AND rank = $rank
    GROUP BY step
),
span AS (
    SELECT
        step,
        coalesce(
            lag(end_ns) OVER (ORDER BY step),
            (SELECT started_at_ns FROM rank_info WHERE session_id = $session AND attempt = $attempt AND rank = $rank)
            + $offset_ns,
            end_ns
        ) AS begin_ns,
        end_ns,
        row_number() OVER (ORDER BY step) AS nth
    FROM step_end
),
-- The step that the instant lies in: the first that ends after it.
peak AS (
    SELECT step, arg_max(peak_seq, (peak_bytes, -peak_seq)) AS seq
    FROM step_bucket
    WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device
    GROUP BY step
),
here AS (
    SELECT coalesce(min(nth) FILTER (end_ns > $at_ns), max(nth) + 1) AS nth FROM span
)
SELECT
    s.step,
    s.begin_ns,
    s.end_ns,
    p.seq
FROM span AS s
LEFT JOIN peak AS p USING (step)
CROSS JOIN here AS h
CROSS JOIN unstreamed
WHERE CASE WHEN $step::BIGINT IS NULL THEN s.nth = h.nth + $by ELSE s.step = $step END
ORDER BY s.step;
