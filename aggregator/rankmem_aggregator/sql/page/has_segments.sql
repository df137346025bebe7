-- Question: Are segments of a device of a rank known by an event?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   seq: the event
-- Columns:
--   known: true if one came by then, or was there when the recording began
SELECT
    EXISTS (
        FROM older_segment
        WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device AND seq <= $seq
    )
    OR EXISTS (
        FROM memory_event
        WHERE session_id = $session
            AND attempt = $attempt
            AND rank = $rank
            AND device = $device
            AND seq <= $seq
            AND action IN ('segment_alloc', 'segment_map')
    ) AS known
ORDER BY known;
