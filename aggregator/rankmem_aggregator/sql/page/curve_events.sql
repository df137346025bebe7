-- Question: How did a device of a rank go up and down, event by event?
-- Parameters:
--   session (text): session id
--   attempt, rank, device: which device
--   offset_ns (ns): added to its host's times
--   from_ns, until_ns (ns, common clock): the range, both ends included
-- Columns:
--   time_ns (ns, common clock): of the event, of a sample of the process, or of what is older than the recording (held_before)
--   seq: its position in the rank's log
--   action: as in memory_event; NULL for what is no event
--   size_bytes (bytes): of the block or segment
--   address (text): of it, in hexadecimal digits
--   requested, allocated, active, reserved (bytes): totals of the device after it; NULL where not known
--   process (bytes): held by the whole process, where it is a sample
SELECT
    time_ns + $offset_ns AS time_ns,
    seq,
    action,
    size_bytes,
    '0x' || lower(hex(address)) AS address,
    requested_bytes AS requested,
    allocated_bytes AS allocated,
    active_bytes AS active,
    reserved_bytes AS reserved,
    app_reserved_bytes AS process
FROM (
    SELECT
        time_ns, seq, action, size_bytes, address, requested_bytes, allocated_bytes, active_bytes, reserved_bytes,
        NULL::BIGINT AS app_reserved_bytes
    FROM memory_event
    WHERE session_id = $session
        AND attempt = $attempt
        AND rank = $rank
        AND device = $device
        AND time_ns BETWEEN $from_ns - $offset_ns AND $until_ns - $offset_ns
    UNION ALL BY NAME
    SELECT time_ns, seq, requested_bytes
    FROM held_before
    WHERE session_id = $session
        AND attempt = $attempt
        AND rank = $rank
        AND device = $device
        AND time_ns BETWEEN $from_ns - $offset_ns AND $until_ns - $offset_ns
    UNION ALL BY NAME
    SELECT time_ns, seq, app_reserved_bytes
    FROM process_sample
    WHERE session_id = $session
        AND attempt = $attempt
        AND rank = $rank
        AND device = $device
        AND app_reserved_bytes IS NOT NULL
        AND time_ns BETWEEN $from_ns - $offset_ns AND $until_ns - $offset_ns
)
ORDER BY seq, time_ns;
