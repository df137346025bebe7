-- Question: How did the bytes of each stream or component of a rank go up and down: allocated, active and reserved? Exact.
-- Parameters:
--   of_session: session id
--   of_rank: global rank
--   of_group: stream or component
--   of_attempt: which start of the workers; NULL, the default, for all
-- Columns:
--   attempt, device: which start, and which device
--   group_name: stream or component; NULL where there is none (streams of host memory)
--   seq: the event; -1 for blocks older than the recording
--   time_ns (ns, common clock): when; NULL for blocks older than the recording. Of pinned_host on a device: when it
--     was sampled
--   allocated_bytes (bytes): requested bytes of the group's blocks until their free is requested; of sampled
--     pinned_host NULL
--   active_bytes (bytes): the same until they are given back
--   reserved_bytes (bytes): of its segments made since the recording began; of host memory the allocated. Where a
--     recording of an NPU has totals and no segments: for components from the totals, for streams NULL
-- Scatter: none
CREATE OR REPLACE MACRO allocator_curve(of_session, of_rank, of_group, of_attempt := NULL) AS TABLE
WITH segmentless AS (
    SELECT attempt, device
    FROM memory_event
    WHERE session_id = of_session
        AND rank = of_rank
        AND (of_attempt IS NULL OR attempt = of_attempt)
        AND split_part(device, ':', 1) = 'npu'
    GROUP BY attempt, device
    HAVING count(*) FILTER (WHERE action IN ('segment_alloc', 'segment_map', 'segment_free', 'segment_unmap')) = 0
),
change AS (
    -- Ascend recordings report a free a little after the block was given back: the earlier of the two counts.
    SELECT
        attempt,
        device,
        coalesce(
            if(of_group = 'stream', stream::VARCHAR, component), if(preexisting, 'before the recording', NULL)
        ) AS group_name,
        unnest([
            {seq: greatest(allocation_id, -1), time_ns: allocated_ns, allocated: size_bytes, active: size_bytes},
            {
                seq: least(free_requested_seq, freed_seq),
                time_ns: least(free_requested_ns, freed_ns),
                allocated: -size_bytes,
                active: 0
            },
            {seq: freed_seq, time_ns: freed_ns, allocated: 0, active: -size_bytes}
        ], recursive := true),
        0 AS reserved
    FROM allocation_life
    WHERE session_id = of_session AND rank = of_rank AND (of_attempt IS NULL OR attempt = of_attempt)
    UNION ALL
    SELECT
        e.attempt,
        e.device,
        if(of_group = 'stream', e.stream::VARCHAR, e.component),
        e.seq,
        e.time_ns + coalesce(s.offset_ns, 0),
        0,
        0,
        CASE WHEN e.action IN ('segment_alloc', 'segment_map') THEN e.size_bytes ELSE -e.size_bytes END
    FROM memory_event AS e
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
    WHERE e.session_id = of_session
        AND e.rank = of_rank
        AND (of_attempt IS NULL OR e.attempt = of_attempt)
        AND e.action IN ('segment_alloc', 'segment_map', 'segment_free', 'segment_unmap')
    UNION ALL
    -- An event's totals are its device's, so what it changed is its own component's.
    SELECT
        e.attempt,
        e.device,
        e.component,
        e.seq,
        e.time_ns + coalesce(s.offset_ns, 0),
        0,
        0,
        e.reserved_bytes - lag(e.reserved_bytes, 1, 0) OVER (PARTITION BY e.attempt, e.device ORDER BY e.seq)
    FROM memory_event AS e
    INNER JOIN segmentless AS l USING (attempt, device)
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
    WHERE of_group = 'component'
        AND e.session_id = of_session
        AND e.rank = of_rank
        AND e.reserved_bytes IS NOT NULL
),
course AS (
    SELECT
        attempt,
        device,
        group_name,
        seq,
        time_ns,
        (sum(allocated) OVER life)::BIGINT AS allocated_bytes,
        (sum(active) OVER life)::BIGINT AS active_bytes,
        (sum(reserved) OVER life)::BIGINT AS reserved_bytes,
        lead(seq) OVER life AS seq_after
    FROM change
    WHERE seq IS NOT NULL
    WINDOW life AS (
        PARTITION BY attempt, device, group_name ORDER BY seq, active, time_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
)
SELECT
    attempt,
    device,
    group_name,
    seq,
    time_ns,
    allocated_bytes,
    active_bytes,
    CASE
        WHEN device IN ('cpu', 'pinned') THEN allocated_bytes
        WHEN of_group = 'stream' AND (attempt, device) IN (FROM segmentless) THEN NULL
        ELSE reserved_bytes
    END AS reserved_bytes
FROM course
CROSS JOIN unstreamed
WHERE seq_after IS DISTINCT FROM seq
UNION ALL
SELECT
    c.attempt,
    c.device,
    c.component,
    c.seq,
    c.time_ns + coalesce(s.offset_ns, 0),
    NULL,
    c.active_bytes,
    c.reserved_bytes
FROM component_sample AS c
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
WHERE of_group = 'component'
    AND c.session_id = of_session
    AND c.rank = of_rank
    AND (of_attempt IS NULL OR c.attempt = of_attempt)
    AND c.component = 'pinned_host'
ORDER BY attempt, device, group_name, seq;

COMMENT ON MACRO TABLE allocator_curve IS 'Allocated, active and reserved bytes of each stream or component of a rank.';
