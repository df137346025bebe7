-- Question: What did the components of a process hold on a device at given instants, beside PyTorch's allocator?
-- Parameters:
--   session (text): session id
--   attempt (count): which start of the workers
--   rank (count): global rank
--   device (text): device type and index
--   instants (text): a JSON list of at_ns (ns, common clock) and seq, the position in the rank's log then
-- Columns:
--   at_ns (ns, common clock): which instant
--   component (text): its name in the recording: HCCL, RUNTIME, GE, APP, ...; of an allocator ge, ...
--   is_allocator: whether it is an allocator whose events are recorded; else it was sampled
--   reserved_bytes (bytes): what it held: of an allocator then, of a sampled one by the last sample before, else the first
--   sampled_ns (ns, common clock): that sample; of an allocator NULL
-- Scatter: none
WITH instant AS MATERIALIZED (
    SELECT i.*
    FROM (SELECT unnest($instants::STRUCT(at_ns BIGINT, seq BIGINT)[], recursive := true)) AS i
    CROSS JOIN unstreamed
)
SELECT
    i.at_ns,
    c.component,
    false AS is_allocator,
    coalesce(
        arg_max(c.reserved_bytes, c.time_ns) FILTER (WHERE c.time_ns + coalesce(s.offset_ns, 0) <= i.at_ns),
        arg_min(c.reserved_bytes, c.time_ns)
    ) AS reserved_bytes,
    coalesce(
        max(c.time_ns + coalesce(s.offset_ns, 0)) FILTER (WHERE c.time_ns + coalesce(s.offset_ns, 0) <= i.at_ns),
        min(c.time_ns + coalesce(s.offset_ns, 0))
    ) AS sampled_ns
FROM component_sample AS c
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
CROSS JOIN instant AS i
WHERE c.session_id = $session
    AND c.attempt = $attempt
    AND c.rank = $rank
    AND c.device = $device
    AND c.component <> 'pinned_host'
GROUP BY i.at_ns, c.component
HAVING max(c.reserved_bytes) > 0
UNION ALL
-- An event's totals are its device's, so what it changed is its own component's.
SELECT i.at_ns, c.component, true, sum(c.change_bytes)::BIGINT, NULL::BIGINT
FROM (
    SELECT
        e.component, e.seq, e.reserved_bytes - lag(e.reserved_bytes, 1, 0) OVER (ORDER BY e.seq) AS change_bytes
    FROM memory_event AS e
    INNER JOIN device_info AS d USING (session_id, attempt, rank, device)
    WHERE d.source = 'mindstudio'
        AND e.session_id = $session
        AND e.attempt = $attempt
        AND e.rank = $rank
        AND e.device = $device
        AND e.reserved_bytes IS NOT NULL
) AS c
INNER JOIN instant AS i ON c.seq <= i.seq
WHERE c.component NOT IN ('pytorch', 'cuda_graph', 'mem_pool')
GROUP BY i.at_ns, c.component
ORDER BY i.at_ns, is_allocator, component;
