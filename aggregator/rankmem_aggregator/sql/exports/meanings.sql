-- Question: Has any block of a track a category, and has the track events other than allocs?
-- Parameters:
--   session (text), attempt, rank, device (text): the device
--   seq_first, seq_last: range of the log
-- Columns:
--   knows: true where a block allocated in the range has a category
--   others: true where an event of the range is no alloc
SELECT
    (
        SELECT count(*) > 0
        FROM allocation_record
        WHERE session_id = $session
            AND attempt = $attempt
            AND rank = $rank
            AND device = $device
            AND allocation_id BETWEEN $seq_first AND $seq_last
            AND category <> 'unknown'
    )
    OR (
        SELECT count(*) > 0
        FROM category_change
        WHERE session_id = $session
            AND attempt = $attempt
            AND rank = $rank
            AND device = $device
            AND allocation_id BETWEEN $seq_first AND $seq_last
            AND category <> 'unknown'
    ) AS knows,
    (
        SELECT count(*) > 0
        FROM memory_event
        WHERE session_id = $session
            AND attempt = $attempt
            AND rank = $rank
            AND device = $device
            AND seq BETWEEN $seq_first AND $seq_last
            AND action <> 'alloc'
    ) AS others
ORDER BY knows;
