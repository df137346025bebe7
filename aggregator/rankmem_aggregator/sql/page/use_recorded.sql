-- Question: Is it recorded, for a device of a rank, when its blocks were used, asked to be freed, and when steps ended?
-- Parameters:
--   session, attempt, rank, device: which device
-- Columns:
--   backward: some backward call is known to belong to a forward call: those are the uses that are known
--   requests: of some block it is known when its free was requested
--   steps: ends of steps are known
--   uses: accesses of some block are known
SELECT
    EXISTS (
        SELECT 1
        FROM operator_call AS c
        WHERE c.session_id = $session AND c.attempt = $attempt AND c.rank = $rank AND c.forward_call_id IS NOT NULL
    ) AS backward,
    EXISTS (
        SELECT 1
        FROM memory_event AS e
        WHERE e.session_id = $session
            AND e.attempt = $attempt
            AND e.rank = $rank
            AND e.device = $device
            AND e.action = 'free_requested'
    ) AS requests,
    EXISTS (
        SELECT 1 FROM step AS s WHERE s.session_id = $session AND s.attempt = $attempt AND s.rank = $rank
    ) AS steps,
    EXISTS (
        SELECT 1
        FROM allocation_use AS u
        WHERE u.session_id = $session AND u.attempt = $attempt AND u.rank = $rank AND u.device = $device
    ) AS uses
ORDER BY backward;
