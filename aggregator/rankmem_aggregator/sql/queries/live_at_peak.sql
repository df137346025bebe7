-- Question: What was alive on a rank at its own peak? The largest first.
-- Parameters:
--   session (text): session id
--   rank (count): global rank
--   attempt (count): which start of the workers; NULL for the one with the rank's highest peak
--   device (text): device type and index; NULL for all, each at its own peak
-- Columns:
--   attempt, rank, device: whose
--   allocation_id: seq of its alloc event; negative for blocks older than the recording
--   address: on its device
--   size_bytes (bytes): requested size
--   operator: the operator call that allocated; NULL outside of calls, before the recording for an older block
--   line: as in the view stack
--   forward_line: of a block of backward the line of the forward call it belongs to
--   stack: all frames as "file:line function", the one nearest to the operator first
--   category: what the bytes meant at the peak
--   module, phase, step, stream, component: as in the view allocation
--   allocated_ns (ns, common clock): when; NULL for blocks older than the recording
--   age_ns (ns): from its alloc to the peak
--   preexisting: true for a block older than the recording
--   attribution, like_id: by what operator, module, phase and stacks are known, as in the view allocation
-- Scatter: none
SELECT
    attempt,
    rank,
    device,
    allocation_id,
    address,
    size_bytes,
    coalesce(operator, CASE WHEN preexisting THEN 'before the recording' END) AS operator,
    line,
    forward_line,
    coalesce(frames, []) AS stack,
    meaning_of(category, preexisting) AS category,
    module,
    phase,
    step,
    stream,
    component,
    CASE WHEN NOT preexisting THEN allocated_ns END AS allocated_ns,
    age_ns,
    preexisting,
    attribution,
    like_id
FROM live_at_peak($session, of_rank := $rank, of_attempt := $attempt::INTEGER)
WHERE $device::VARCHAR IS NULL OR device = $device
ORDER BY size_bytes DESC, attempt, device, allocation_id;
