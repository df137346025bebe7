-- Question: Are segments of a device of a rank known?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
-- Columns:
--   known: true if one came, or was there when the recording began
SELECT
    EXISTS (
        FROM older_segment
        WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device
    )
    OR EXISTS (
        FROM memory_event
        WHERE session_id = $session
            AND attempt = $attempt
            AND rank = $rank
            AND device = $device
            AND action IN ('segment_alloc', 'segment_map')
    ) AS known
ORDER BY known;
