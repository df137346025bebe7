-- Question: Which events of a device of a rank, spread over a range, are looked at one by one? Also its peak and failures.
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   offset_ns (ns): added to its host's times
--   from_ns, until_ns (ns, common clock): the range; NULL: all of it
--   num_instants: events spread evenly
--   num_failures: failed allocations at most, the earliest
--   peak_seq: the event after which most was held
-- Columns:
--   seq: an event; in order, each once
--   time_ns (ns, common clock): when
--   events: of the range
--   is_failure: true where an allocation failed
WITH numbered AS MATERIALIZED (
    SELECT
        seq,
        time_ns,
        action,
        row_number() OVER (ORDER BY seq) - 1 AS place,
        count(*) OVER () AS events
    FROM memory_event
    WHERE session_id = $session
        AND attempt = $attempt
        AND rank = $rank
        AND device = $device
        AND time_ns >= coalesce($from_ns::BIGINT - $offset_ns::BIGINT, time_ns)
        AND time_ns <= coalesce($until_ns::BIGINT - $offset_ns::BIGINT, time_ns)
)
SELECT seq, time_ns + $offset_ns::BIGINT AS time_ns, events, action = 'oom' AS is_failure
FROM numbered
CROSS JOIN unstreamed
WHERE place = 0
    OR place = events - 1
    OR seq = $peak_seq
    OR place * ($num_instants - 1) // events != (place - 1) * ($num_instants - 1) // events
    OR seq IN (SELECT seq FROM numbered WHERE action = 'oom' ORDER BY seq LIMIT $num_failures)
ORDER BY seq;
