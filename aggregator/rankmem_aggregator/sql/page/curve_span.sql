-- Question: How many events does a device of a rank have in a range, and what did it hold when the range began?
-- Parameters:
--   session (text): session id
--   attempt, rank, device: which device
--   offset_ns (ns): added to its host's times
--   from_ns, until_ns (ns, common clock): the range
-- Columns:
--   events: in the buckets that touch the range, which may begin earlier and end later
--   entry_seq: the last event before the range; NULL where there is none
--   requested, allocated, active, reserved (bytes): what it left, each as last known
--   process (bytes): held by the whole process, by the last sample before the range
WITH
-- Of host memory the buckets repeat the requested bytes as the other figures; events have none.
bucket AS MATERIALIZED (
    SELECT
        b.seq_last,
        b.events,
        b.requested_last_bytes,
        if(b.device IN ('cpu', 'pinned'), NULL, b.allocated_last_bytes) AS allocated_last_bytes,
        if(b.device IN ('cpu', 'pinned'), NULL, b.active_last_bytes) AS active_last_bytes,
        if(b.device IN ('cpu', 'pinned'), NULL, b.reserved_last_bytes) AS reserved_last_bytes,
        b.first_ns + $offset_ns AS begin_ns,
        b.last_ns + $offset_ns AS end_ns
    FROM memory_bucket AS b
    WHERE b.session_id = $session
        AND b.attempt = $attempt
        AND b.rank = $rank
        AND b.device = $device
        AND b.first_ns <= $until_ns - $offset_ns
),
before AS (
    SELECT
        seq_last AS seq, requested_last_bytes AS requested, allocated_last_bytes AS allocated,
        active_last_bytes AS active, reserved_last_bytes AS reserved
    FROM bucket
    WHERE end_ns < $from_ns
    UNION ALL
    -- A bucket lasts a second at most, so one that begins before the range has its events within the second before.
    SELECT e.seq, e.requested_bytes, e.allocated_bytes, e.active_bytes, e.reserved_bytes
    FROM memory_event AS e
    WHERE e.session_id = $session
        AND e.attempt = $attempt
        AND e.rank = $rank
        AND e.device = $device
        AND e.time_ns >= $from_ns - 1000000000 - $offset_ns
        AND e.time_ns < $from_ns - $offset_ns
    UNION ALL
    SELECT h.seq, h.requested_bytes, NULL, NULL, NULL
    FROM held_before AS h
    WHERE h.session_id = $session
        AND h.attempt = $attempt
        AND h.rank = $rank
        AND h.device = $device
        AND h.time_ns + $offset_ns < $from_ns
),
entry AS (
    SELECT
        max(seq) AS entry_seq,
        arg_max(requested, seq) AS requested,
        arg_max(allocated, seq) AS allocated,
        arg_max(active, seq) AS active,
        arg_max(reserved, seq) AS reserved
    FROM before
),
sample AS (
    SELECT arg_max(p.app_reserved_bytes, p.seq) AS process
    FROM process_sample AS p
    WHERE p.session_id = $session
        AND p.attempt = $attempt
        AND p.rank = $rank
        AND p.device = $device
        AND p.time_ns + $offset_ns < $from_ns
),
inside AS (
    SELECT coalesce(sum(events), 0)::BIGINT AS events
    FROM bucket
    WHERE end_ns >= $from_ns AND begin_ns <= $until_ns
)
SELECT
    i.events,
    e.entry_seq,
    e.requested,
    e.allocated,
    e.active,
    e.reserved,
    s.process
FROM inside AS i
CROSS JOIN entry AS e
CROSS JOIN sample AS s
CROSS JOIN unstreamed
ORDER BY i.events;
