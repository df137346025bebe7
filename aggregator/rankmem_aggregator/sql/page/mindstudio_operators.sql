-- Question: Which blocks did a rank's operators allocate, as in MindStudio's table? A page of them.
-- Parameters:
--   session (text): session id
--   rank (count): global rank
--   started_ns (ns, common clock): the session's start, from which times count; NULL: it is not known, and nor are they
--   part (text): part of an operator's name, in any case; NULL for all
--   least_kb, most_kb (KB of 1024 bytes): sizes; NULL for any
--   from_ns, until_ns (ns, common clock): the range; NULL for all
--   host_from_ns, host_until_ns (ns): the range, as the earliest and the latest of the hosts' clocks has it; NULL for all,
--     and where only_within is asked for
--   only_within (true or false): only what was allocated or released within the range; else what lived in it
--   sort (text): column to sort by, none of the totals; descending (true or false)
--   skipped, at_most (count): rows before the page, and on it
-- Columns:
--   Name: the operator
--   Size(KB), Allocation Time(ms), Release Time(ms), Duration(ms), Active Release Time(ms), Active Duration(ms),
--     Allocation Total Allocated(MB), Allocation Total Reserved(MB), Allocation Total Active(MB),
--     Release Total Allocated(MB), Release Total Reserved(MB), Release Total Active(MB), Stream: as in MindStudio, whose
--     OP_MEMORY this is of one rank
--   Device: index of the device
--   total: rows on all pages
WITH ending AS (
    -- A free may come in two rows: requested in one batch, completed in a later one.
    SELECT
        attempt,
        device,
        allocation_id,
        max(free_requested_ns) AS free_requested_ns,
        max(free_requested_seq) AS free_requested_seq,
        max(freed_ns) AS freed_ns,
        max(freed_seq) AS freed_seq
    FROM allocation_end
    WHERE session_id = $session AND rank = $rank
    GROUP BY attempt, device, allocation_id
),
block AS (
    SELECT
        r.attempt,
        r.device,
        r.allocation_id,
        r.component <> 'ge' AS has_active,
        coalesce(r.operator, 'unknown') AS operator,
        r.size_bytes,
        r.stream,
        r.allocated_ns + coalesce(s.offset_ns, 0) AS made_ns,
        coalesce(r.free_requested_ns, e.free_requested_ns, r.freed_ns, e.freed_ns) + coalesce(s.offset_ns, 0) AS released_ns,
        coalesce(r.freed_ns, e.freed_ns) + coalesce(s.offset_ns, 0) AS freed_ns,
        coalesce(r.free_requested_seq, e.free_requested_seq, r.freed_seq, e.freed_seq) AS released_seq
    FROM allocation_record AS r
    LEFT JOIN ending AS e USING (attempt, device, allocation_id)
    LEFT JOIN rank_span AS s ON s.session_id = $session AND s.rank = $rank AND s.attempt = r.attempt
    WHERE r.session_id = $session
        AND r.rank = $rank
        AND r.device <> 'pinned'
        -- Blocks known from a recording's totals alone have no row there.
        AND NOT (r.operator IS NULL AND r.address IS NULL AND split_part(r.device, ':', 1) = 'npu')
        -- By the table's own columns DuckDB passes over most of the file; which blocks fit is said below.
        AND ($host_until_ns::BIGINT IS NULL OR r.allocated_ns IS NULL OR r.allocated_ns <= $host_until_ns)
        AND ($host_from_ns::BIGINT IS NULL OR r.freed_ns IS NULL OR r.freed_ns >= $host_from_ns)
),
fitting AS MATERIALIZED (
    SELECT *
    FROM block
    WHERE ($part::VARCHAR IS NULL OR contains(lower(operator), lower($part)))
        AND ($least_kb::DOUBLE IS NULL OR size_bytes >= $least_kb * 1024)
        AND ($most_kb::DOUBLE IS NULL OR size_bytes <= $most_kb * 1024)
        AND (
            $from_ns::BIGINT IS NULL
            OR CASE
                WHEN $only_within::BOOLEAN
                    THEN coalesce(made_ns BETWEEN $from_ns AND $until_ns, false)
                        OR coalesce(released_ns BETWEEN $from_ns AND $until_ns, false)
                ELSE coalesce(made_ns <= $until_ns, true) AND coalesce(released_ns >= $from_ns, true)
            END
        )
),
page AS MATERIALIZED (
    SELECT
        *,
        row_number() OVER () AS place
    FROM (
        SELECT *
        FROM fitting
        ORDER BY
            CASE WHEN $sort = 'Name' AND NOT $descending::BOOLEAN THEN operator END,
            CASE WHEN $sort = 'Name' AND $descending::BOOLEAN THEN operator END DESC,
            CASE WHEN $descending::BOOLEAN THEN -1 ELSE 1 END * CASE $sort
                WHEN 'Size(KB)' THEN size_bytes
                WHEN 'Allocation Time(ms)' THEN made_ns
                WHEN 'Release Time(ms)' THEN released_ns
                WHEN 'Duration(ms)' THEN released_ns - made_ns
                WHEN 'Active Release Time(ms)' THEN CASE WHEN has_active THEN freed_ns END
                WHEN 'Active Duration(ms)' THEN CASE WHEN has_active THEN freed_ns - made_ns END
                WHEN 'Stream' THEN stream
            END NULLS LAST,
            made_ns NULLS FIRST, operator, size_bytes, released_ns
        LIMIT $at_most OFFSET $skipped
    )
),
-- What the component held after each of their events; of an NPU its components' own running sums.
held AS MATERIALIZED (
    SELECT
        e.attempt,
        e.device,
        e.seq,
        coalesce(e.allocated_bytes, e.requested_bytes) AS allocated_bytes,
        coalesce(e.reserved_bytes, e.requested_bytes) AS reserved_bytes,
        coalesce(e.active_bytes, e.requested_bytes) AS active_bytes
    FROM memory_event AS e
    INNER JOIN (
        SELECT unnest(events, recursive := true)
        FROM (
            SELECT list({attempt: attempt, device: device, seq: seq}) AS events
            FROM (
                SELECT attempt, device, allocation_id AS seq FROM page
                UNION
                SELECT attempt, device, released_seq FROM page
            )
        )
    ) AS w ON w.attempt = e.attempt AND w.device = e.device AND w.seq = e.seq
    WHERE e.session_id = $session
        AND e.rank = $rank
        AND e.requested_bytes IS NOT NULL
        AND split_part(e.device, ':', 1) <> 'npu'
    UNION ALL
    SELECT attempt, device, seq, allocated_bytes, reserved_bytes, active_bytes
    FROM mindstudio.component_total
    -- By the second line DuckDB passes over all other devices.
    WHERE session_id = $session
        AND rank = $rank
        AND device BETWEEN 'npu' AND 'npu;'
        AND split_part(device, ':', 1) = 'npu'
)
SELECT
    p.operator AS "Name",
    p.size_bytes / 1024 AS "Size(KB)",
    (p.made_ns - $started_ns::BIGINT) / 1e6 AS "Allocation Time(ms)",
    (p.released_ns - $started_ns::BIGINT) / 1e6 AS "Release Time(ms)",
    (p.released_ns - p.made_ns) / 1e6 AS "Duration(ms)",
    CASE WHEN p.has_active THEN (p.freed_ns - $started_ns::BIGINT) / 1e6 END AS "Active Release Time(ms)",
    CASE WHEN p.has_active THEN (p.freed_ns - p.made_ns) / 1e6 END AS "Active Duration(ms)",
    m.allocated_bytes / 1048576 AS "Allocation Total Allocated(MB)",
    m.reserved_bytes / 1048576 AS "Allocation Total Reserved(MB)",
    CASE WHEN p.has_active THEN m.active_bytes / 1048576 END AS "Allocation Total Active(MB)",
    r.allocated_bytes / 1048576 AS "Release Total Allocated(MB)",
    r.reserved_bytes / 1048576 AS "Release Total Reserved(MB)",
    CASE WHEN p.has_active THEN r.active_bytes / 1048576 END AS "Release Total Active(MB)",
    p.stream::VARCHAR AS "Stream",
    mindstudio.device_id(p.device) AS "Device",
    n.total
FROM page AS p
CROSS JOIN (SELECT count(*) AS total FROM fitting) AS n
LEFT JOIN held AS m ON m.attempt = p.attempt AND m.device = p.device AND m.seq = p.allocation_id
LEFT JOIN held AS r ON r.attempt = p.attempt AND r.device = p.device AND r.seq = p.released_seq
CROSS JOIN unstreamed
ORDER BY p.place;
