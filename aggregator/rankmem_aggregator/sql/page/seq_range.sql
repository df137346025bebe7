-- Question: From which to which event did a device of a rank go, in a range of time or of its log?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   offset_ns (ns): added to its host's times
--   from_ns, until_ns (ns, common clock): the range of time; NULL: all of it
--   seq_from, seq_to: the range of the log; NULL: all of it
-- Columns:
--   seq_first, seq_last: its first and last event; NULL where there is none
--   first_ns, last_ns (ns, common clock): when they were
--   events: how many
SELECT
    min(seq) AS seq_first,
    max(seq) AS seq_last,
    min(time_ns) + $offset_ns::BIGINT AS first_ns,
    max(time_ns) + $offset_ns::BIGINT AS last_ns,
    count(*) AS events
FROM memory_event
WHERE session_id = $session
    AND attempt = $attempt
    AND rank = $rank
    AND device = $device
    AND time_ns >= coalesce($from_ns::BIGINT - $offset_ns::BIGINT, time_ns)
    AND time_ns <= coalesce($until_ns::BIGINT - $offset_ns::BIGINT, time_ns)
    AND seq >= coalesce($seq_from::BIGINT, seq)
    AND seq <= coalesce($seq_to::BIGINT, seq)
ORDER BY ALL;
