-- Question: The same as mindstudio_operators, of a page that is chosen by the totals: these are found of every block.
-- Parameters:
--   session (text): session id
--   rank (count): global rank
--   part (text): part of an operator's name, in any case; NULL for all
--   least_kb, most_kb (KB of 1024 bytes): sizes; NULL for any
--   from_ns, until_ns (ns, common clock): the range; NULL for all
--   only_within (true or false): only what was allocated or released within the range; else what lived in it
--   sort (text): column to sort by; descending (true or false)
--   skipped, at_most (count): rows before the page, and on it
-- Columns:
--   Name: the operator
--   Size(KB), Allocation Time(ms), Release Time(ms), Duration(ms), Active Release Time(ms), Active Duration(ms),
--     Allocation Total Allocated(MB), Allocation Total Reserved(MB), Allocation Total Active(MB),
--     Release Total Allocated(MB), Release Total Reserved(MB), Release Total Active(MB), Stream: as in MindStudio; times
--     from the start of the session
--   Device: index of the device
--   total: rows on all pages
SELECT
    i.value AS "Name",
    o.size / 1024 AS "Size(KB)",
    (o.allocationTime - s.started_ns) / 1e6 AS "Allocation Time(ms)",
    (o.releaseTime - s.started_ns) / 1e6 AS "Release Time(ms)",
    o.duration / 1e6 AS "Duration(ms)",
    (o.activeReleaseTime - s.started_ns) / 1e6 AS "Active Release Time(ms)",
    o.activeDuration / 1e6 AS "Active Duration(ms)",
    o.allocationTotalAllocated / 1048576 AS "Allocation Total Allocated(MB)",
    o.allocationTotalReserved / 1048576 AS "Allocation Total Reserved(MB)",
    o.allocationTotalActive / 1048576 AS "Allocation Total Active(MB)",
    o.releaseTotalAllocated / 1048576 AS "Release Total Allocated(MB)",
    o.releaseTotalReserved / 1048576 AS "Release Total Reserved(MB)",
    o.releaseTotalActive / 1048576 AS "Release Total Active(MB)",
    o.streamPtr::VARCHAR AS "Stream",
    o.deviceId AS "Device",
    count(*) OVER () AS total
FROM mindstudio.OP_MEMORY AS o
INNER JOIN (
    SELECT DISTINCT coalesce(operator, 'unknown') AS value, mindstudio.id_of(coalesce(operator, 'unknown')) AS id
    FROM allocation_record
    WHERE session_id = $session AND rank = $rank
) AS i ON i.id = o.name
INNER JOIN session_overview AS s ON s.session_id = o.sessionId
WHERE o.sessionId = $session
    AND o.rankId = $rank
    AND ($part::VARCHAR IS NULL OR contains(lower(i.value), lower($part)))
    AND ($least_kb::DOUBLE IS NULL OR o.size >= $least_kb * 1024)
    AND ($most_kb::DOUBLE IS NULL OR o.size <= $most_kb * 1024)
    AND (
        $from_ns::BIGINT IS NULL
        OR CASE
            WHEN $only_within::BOOLEAN
                THEN coalesce(o.allocationTime BETWEEN $from_ns AND $until_ns, false)
                    OR coalesce(o.releaseTime BETWEEN $from_ns AND $until_ns, false)
            ELSE coalesce(o.allocationTime <= $until_ns, true) AND coalesce(o.releaseTime >= $from_ns, true)
        END
    )
ORDER BY
    CASE WHEN $sort = 'Name' AND NOT $descending::BOOLEAN THEN i.value END,
    CASE WHEN $sort = 'Name' AND $descending::BOOLEAN THEN i.value END DESC,
    CASE WHEN $descending::BOOLEAN THEN -1 ELSE 1 END * CASE $sort
        WHEN 'Size(KB)' THEN o.size
        WHEN 'Allocation Time(ms)' THEN o.allocationTime
        WHEN 'Release Time(ms)' THEN o.releaseTime
        WHEN 'Duration(ms)' THEN o.duration
        WHEN 'Active Release Time(ms)' THEN o.activeReleaseTime
        WHEN 'Active Duration(ms)' THEN o.activeDuration
        WHEN 'Allocation Total Allocated(MB)' THEN o.allocationTotalAllocated
        WHEN 'Allocation Total Reserved(MB)' THEN o.allocationTotalReserved
        WHEN 'Allocation Total Active(MB)' THEN o.allocationTotalActive
        WHEN 'Release Total Allocated(MB)' THEN o.releaseTotalAllocated
        WHEN 'Release Total Reserved(MB)' THEN o.releaseTotalReserved
        WHEN 'Release Total Active(MB)' THEN o.releaseTotalActive
        WHEN 'Stream' THEN o.streamPtr
    END NULLS LAST,
    o.allocationTime NULLS FIRST, i.value, o.size, o.releaseTime
LIMIT $at_most OFFSET $skipped;
