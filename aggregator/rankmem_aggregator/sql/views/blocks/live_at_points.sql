-- Question: What was alive on several devices of ranks, each right after an event of its own? Exact.
-- Parameters:
--   of_session: session id
--   of_points: list of {attempt, rank, device, seq}: after which event of which device of a rank
-- Columns:
--   all columns of the view allocation_life
--   category: what the bytes meant then
--   device_type: cpu, cuda, ...
--   point_seq: the event
-- Scatter: hosts
CREATE OR REPLACE MACRO live_at_points(of_session, of_points) AS TABLE
WITH point AS MATERIALIZED (
    SELECT p.attempt, p.rank, p.device, p.seq AS point_seq
    FROM (SELECT unnest(of_points) AS p)
),
-- What was freed later and what has no free in its record, each by itself: by that DuckDB passes over all blocks that
-- were gone before the first of the points, and over those made after the last.
record AS (
    SELECT *
    FROM allocation_record
    WHERE session_id = of_session
        AND freed_seq > (SELECT min(point_seq) FROM point)
        AND allocation_id <= (SELECT max(point_seq) FROM point)
    UNION ALL
    SELECT *
    FROM allocation_record
    WHERE session_id = of_session AND freed_seq IS NULL AND allocation_id <= (SELECT max(point_seq) FROM point)
),
ending AS (
    SELECT
        attempt,
        rank,
        device,
        allocation_id,
        max(free_requested_ns) AS free_requested_ns,
        max(free_requested_seq) AS free_requested_seq,
        max(freed_ns) AS freed_ns,
        max(freed_seq) AS freed_seq
    FROM allocation_end
    WHERE session_id = of_session
    GROUP BY attempt, rank, device, allocation_id
),
block AS MATERIALIZED (
    SELECT
        r.session_id,
        r.attempt,
        r.rank,
        r.device,
        r.allocation_id,
        r.address,
        r.size_bytes,
        r.requested_bytes,
        r.stream,
        r.pool,
        r.component,
        coalesce(r.category, 'unknown') AS first_category,
        r.operator,
        r.module,
        r.phase,
        r.step,
        r.annotation,
        r.call_id,
        r.stack_id,
        r.forward_call_id,
        r.forward_stack_id,
        r.recomputed,
        r.attribution,
        r.like_id,
        r.allocated_ns + coalesce(s.offset_ns, 0) AS allocated_ns,
        coalesce(r.free_requested_ns, e.free_requested_ns) + coalesce(s.offset_ns, 0) AS free_requested_ns,
        coalesce(r.free_requested_seq, e.free_requested_seq) AS free_requested_seq,
        coalesce(r.freed_ns, e.freed_ns) + coalesce(s.offset_ns, 0) AS freed_ns,
        coalesce(r.freed_seq, e.freed_seq) AS freed_seq,
        coalesce(r.freed_ns, e.freed_ns) - r.allocated_ns AS duration_ns,
        r.preexisting,
        p.point_seq
    FROM record AS r
    INNER JOIN point AS p
        ON p.attempt = r.attempt
        AND p.rank = r.rank
        AND p.device = r.device
        AND r.allocation_id <= p.point_seq
        AND (r.freed_seq IS NULL OR r.freed_seq > p.point_seq)
    LEFT JOIN ending AS e
        ON e.attempt = r.attempt AND e.rank = r.rank AND e.device = r.device AND e.allocation_id = r.allocation_id
    LEFT JOIN rank_span AS s ON s.session_id = of_session AND s.attempt = r.attempt AND s.rank = r.rank
    WHERE r.freed_seq IS NOT NULL OR e.freed_seq IS NULL OR e.freed_seq > p.point_seq
),
-- A list: DuckDB takes one row to be few, and hashes these, not the changes.
alive AS (
    SELECT list({
        attempt: attempt, rank: rank, device: device, allocation_id: allocation_id, point_seq: point_seq
    }) AS blocks
    FROM block
),
meaning AS (
    SELECT
        c.attempt,
        c.rank,
        c.device,
        b.point_seq,
        c.allocation_id,
        arg_max(c.category, (c.seq, c.time_ns)) AS category
    FROM category_change AS c
    INNER JOIN (SELECT unnest(blocks, recursive := true) FROM alive) AS b USING (attempt, rank, device, allocation_id)
    WHERE c.session_id = of_session AND c.seq <= b.point_seq
    GROUP BY c.attempt, c.rank, c.device, b.point_seq, c.allocation_id
)
SELECT b.*, coalesce(m.category, b.first_category) AS category, split_part(b.device, ':', 1) AS device_type
FROM block AS b
LEFT JOIN meaning AS m USING (attempt, rank, device, point_seq, allocation_id);

COMMENT ON MACRO TABLE live_at_points IS 'The blocks alive after an event of each given device, with what they meant then.';
