-- Question: Which event of a device of a rank is the last one by an instant, or else its first?
-- Parameters:
--   session (text): session id
--   attempt, rank, device: which device
--   offset_ns (ns): added to its host's times
--   at_ns (ns, common clock): the instant
-- Columns:
--   seq: that event's position in the rank's log
WITH bucket AS (
    SELECT
        arg_max(seq_first, seq_first) FILTER (first_ns <= $at_ns - $offset_ns) AS seq_first,
        arg_max(seq_last, seq_first) FILTER (first_ns <= $at_ns - $offset_ns) AS seq_last,
        min(seq_first) AS first_seq
    FROM memory_bucket
    WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device
)
SELECT coalesce(max(e.seq), any_value(b.first_seq)) AS seq
FROM bucket AS b
LEFT JOIN memory_event AS e
    ON e.seq BETWEEN b.seq_first AND b.seq_last
    AND e.session_id = $session
    AND e.attempt = $attempt
    AND e.rank = $rank
    AND e.device = $device
    AND e.time_ns <= $at_ns - $offset_ns
ORDER BY seq;
