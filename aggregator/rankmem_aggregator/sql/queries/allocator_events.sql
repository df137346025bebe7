-- Question: What was the allocator of a device asked, and what did it take from the device and give back?
-- Parameters:
--   session (text): session id
--   attempt (count): which start of the workers
--   rank (count): global rank
--   device (text): device type and index
--   at_most (count): rows at most, those that came first
-- Columns:
--   seq, action, address, size_bytes, stream, pool, allocation_id: as in memory_event
--   by_program: of a segment given back, true if the program emptied the cache just then; NULL where the rank has no
--     marker of such a call
-- Scatter: none
SELECT
    e.seq,
    e.action,
    e.address,
    e.size_bytes,
    e.stream,
    e.pool,
    e.allocation_id,
    CASE
        WHEN e.action IN ('segment_free', 'segment_unmap') AND m.calls IS NOT NULL
            THEN len(list_filter(
                m.calls,
                lambda call: call.thread = e.thread AND e.time_ns BETWEEN call.started_ns AND call.ended_ns
            )) > 0
    END AS by_program
FROM memory_event AS e
CROSS JOIN (
    SELECT list({thread: thread, started_ns: started_ns, ended_ns: coalesce(ended_ns, started_ns)}) AS calls
    FROM marker
    WHERE session_id = $session
        AND attempt = $attempt
        AND rank = $rank
        AND kind = 'allocator'
        AND name = 'torch.cuda.empty_cache'
) AS m
WHERE e.session_id = $session
    AND e.attempt = $attempt
    AND e.rank = $rank
    AND e.device = $device
    AND e.action IN (
        'alloc', 'free_completed', 'segment_alloc', 'segment_free', 'segment_map', 'segment_unmap', 'oom'
    )
    AND e.component IN ('pytorch', 'cuda_graph', 'mem_pool')
ORDER BY e.seq
LIMIT $at_most;
