-- Question: Which modules held the memory at each rank's own peak, each with all that is within it? Exact.
-- Parameters:
--   of_session: session id
--   of_rank: global rank; NULL, the default, for all ranks added up, each at its own peak
-- Columns:
--   device_type: cpu, cuda, ...
--   module: path in the module tree; NULL for blocks outside of modules, before the recording for older ones
--   class: class of the module; NULL where it is not known
--   depth: 0 for a root
--   own_bytes (bytes): of the blocks alive at the peak whose innermost module it is
--   total_bytes (bytes): the same with those of all modules within it
--   own_allocations: how many blocks are its own
--   num_ranks: ranks on which it, or a module within it, held some
-- Scatter: sums
CREATE OR REPLACE MACRO module_at_peak(of_session, of_rank := NULL) AS TABLE
WITH own AS MATERIALIZED (
    SELECT device_type, group_name AS module, rank, sum(live_bytes) AS bytes, sum(live_allocations) AS allocations
    FROM held_at_points(of_session, 'module', (
        SELECT list({attempt: attempt, rank: rank, device: device, seq: peak_seq})
        FROM peak_by_rank
        WHERE session_id = of_session AND is_rank_peak AND (of_rank IS NULL OR rank = of_rank)
    ))
    GROUP BY device_type, group_name, rank
),
known AS (
    SELECT module, min(class) AS class
    FROM module
    WHERE session_id = of_session AND (of_rank IS NULL OR rank = of_rank)
    GROUP BY module
),
-- Every module that ran or held something, and everything above it.
path AS (
    SELECT DISTINCT array_to_string(parts[:n], '.') AS module, n - 1 AS depth
    FROM (
        SELECT parts, unnest(range(1, len(parts) + 1)) AS n
        FROM (
            SELECT string_split(module, '.') AS parts FROM own WHERE module IS NOT NULL AND module <> 'before the recording'
            UNION
            SELECT string_split(module, '.') FROM known
        )
    )
),
node AS (
    SELECT d.device_type, p.module, p.depth
    FROM path AS p
    CROSS JOIN (SELECT DISTINCT device_type FROM own) AS d
    UNION ALL
    SELECT DISTINCT device_type, module, 0 FROM own WHERE module IS NULL OR module = 'before the recording'
)
SELECT
    n.device_type,
    n.module,
    k.class,
    n.depth,
    coalesce(sum(o.bytes) FILTER (WHERE o.module IS NOT DISTINCT FROM n.module), 0)::BIGINT AS own_bytes,
    coalesce(sum(o.bytes), 0)::BIGINT AS total_bytes,
    coalesce(sum(o.allocations) FILTER (WHERE o.module IS NOT DISTINCT FROM n.module), 0)::BIGINT AS own_allocations,
    count(DISTINCT o.rank) AS num_ranks
FROM node AS n
LEFT JOIN own AS o
    ON o.device_type = n.device_type
    AND (o.module IS NOT DISTINCT FROM n.module OR starts_with(o.module, n.module || '.'))
LEFT JOIN known AS k ON k.module = n.module
CROSS JOIN unstreamed
GROUP BY n.device_type, n.module, k.class, n.depth
ORDER BY n.device_type, string_split(n.module, '.') NULLS LAST;

COMMENT ON MACRO TABLE module_at_peak IS 'The module tree with the bytes that each module held at the rank''s peak, alone and with its children.';
