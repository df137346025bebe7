-- Question: Which allocations failed, how much was asked for, what was free, and in how large a piece?
-- Columns:
--   session_id, attempt, rank, device: whose
--   host_name: its host
--   seq: the event; live_at_seq has what was alive
--   time_ns (ns, common clock): when
--   time_utc: the same, readable
--   size_bytes (bytes): what was asked for; rounded up by the allocator on CUDA
--   device_free_bytes (bytes): free on the device then, where known; of cpu free on the host
--   device_total_bytes (bytes): memory of the device, where known
--   requested_bytes (bytes): requested bytes alive then
--   reserved_bytes (bytes): what the allocator held then; on cpu NULL
--   app_bytes (bytes): what the process held beyond the allocator, by the last sample before; NULL without one
--   unused_bytes (bytes): reserved and in no block, by the blocks and segments we know; NULL where segments are not known
--   largest_free_bytes (bytes): the largest piece of it in a row
--   fragmentation: the part of unused_bytes outside of that piece, 0 to 1
--   stream: of the request
--   operator, line, stack_id: who asked
-- Scatter: hosts
CREATE OR REPLACE VIEW oom_overview AS
WITH failed AS (
    SELECT o.* EXCLUDE (seq), o.seq AS oom_seq, coalesce(s.offset_ns, 0) AS offset_ns, s.host_uid
    FROM oom AS o
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
),
move AS (
    SELECT session_id, attempt, rank, device, oom_seq, e.seq, e.action, e.address, e.size_bytes, e.stream, e.pool
    FROM failed
    INNER JOIN memory_event AS e USING (session_id, attempt, rank, device)
    WHERE e.seq < oom_seq AND e.action IN ('segment_alloc', 'segment_free', 'segment_map', 'segment_unmap')
    UNION ALL
    SELECT session_id, attempt, rank, device, oom_seq, o.seq, 'segment_alloc', o.address, o.size_bytes, o.stream, o.pool
    FROM failed
    INNER JOIN older_segment AS o USING (session_id, attempt, rank, device)
    WHERE o.seq < oom_seq
),
-- Segments grow by map and shrink by unmap, piece by piece.
piece AS (
    SELECT
        session_id,
        attempt,
        rank,
        device,
        oom_seq,
        address,
        address + arg_max(size_bytes, seq) AS end_address,
        arg_max(action, seq) = 'segment_map' AS is_mapped,
        arg_max({stream: stream, pool: pool}, seq) AS belongs_to
    FROM move
    GROUP BY session_id, attempt, rank, device, oom_seq, address
    HAVING arg_max(action, seq) IN ('segment_alloc', 'segment_map')
),
-- Pieces in a row are one segment: a block or a hole may reach from one into the next.
begun AS (
    SELECT
        *,
        NOT coalesce(
            lag(end_address) OVER own = address
            AND (is_mapped OR lag(is_mapped) OVER own)
            AND belongs_to IS NOT DISTINCT FROM lag(belongs_to) OVER own, false
        ) AS is_begin
    FROM piece
    WINDOW own AS (PARTITION BY session_id, attempt, rank, device, oom_seq ORDER BY address)
),
numbered AS (
    SELECT
        *,
        count(*) FILTER (is_begin) OVER (
            PARTITION BY session_id, attempt, rank, device, oom_seq ORDER BY address
        ) AS number
    FROM begun
),
segment AS (
    SELECT
        session_id,
        attempt,
        rank,
        device,
        oom_seq,
        min(address) AS segment_address,
        max(end_address) AS segment_end
    FROM numbered
    GROUP BY session_id, attempt, rank, device, oom_seq, number
),
block AS (
    SELECT
        session_id,
        attempt,
        rank,
        device,
        oom_seq,
        a.address,
        -- The allocator cuts blocks in steps of 512 bytes; torch_npu adds 32 to a request before.
        a.address
        + (a.size_bytes + CASE WHEN starts_with(device, 'npu') THEN 32 ELSE 0 END + 511) // 512 * 512 AS end_address
    FROM failed
    INNER JOIN allocation_record AS a USING (session_id, attempt, rank, device)
    LEFT JOIN (
        SELECT session_id, attempt, rank, device, allocation_id, max(freed_seq) AS freed_seq
        FROM allocation_end
        GROUP BY ALL
    ) AS e USING (session_id, attempt, rank, device, allocation_id)
    CROSS JOIN unstreamed
    WHERE a.allocation_id < oom_seq
        AND (a.freed_seq IS NULL OR a.freed_seq > oom_seq)
        AND (a.freed_seq IS NOT NULL OR e.freed_seq IS NULL OR e.freed_seq > oom_seq)
        AND a.address IS NOT NULL
),
-- What is free begins at a segment's start or a block's end.
edge AS (
    SELECT *, segment_address AS address, segment_address AS from_address
    FROM segment
    UNION ALL
    SELECT g.*, b.address, b.end_address
    FROM segment AS g
    INNER JOIN block AS b USING (session_id, attempt, rank, device, oom_seq)
    WHERE b.address >= g.segment_address AND b.address < g.segment_end
),
-- And reaches up to the next block or the segment's end.
hole AS (
    SELECT
        session_id,
        attempt,
        rank,
        device,
        oom_seq,
        greatest(
            least(lead(address, 1, segment_end) OVER (
                PARTITION BY session_id, attempt, rank, device, oom_seq, segment_address ORDER BY address, from_address
            ), segment_end) - from_address, 0
        ) AS bytes
    FROM edge
),
room AS (
    SELECT
        session_id,
        attempt,
        rank,
        device,
        oom_seq,
        sum(bytes)::BIGINT AS unused_bytes,
        max(bytes) AS largest_free_bytes
    FROM hole
    GROUP BY ALL
)
SELECT
    f.session_id,
    f.attempt,
    f.rank,
    f.device,
    h.host_name,
    f.oom_seq AS seq,
    f.time_ns + f.offset_ns AS time_ns,
    utc_of(f.time_ns + f.offset_ns) AS time_utc,
    f.size_bytes,
    f.device_free_bytes,
    d.total_bytes AS device_total_bytes,
    f.requested_bytes,
    f.reserved_bytes,
    a.app_bytes,
    r.unused_bytes,
    r.largest_free_bytes,
    CASE WHEN r.unused_bytes > 0 THEN 1 - r.largest_free_bytes / r.unused_bytes END AS fragmentation,
    f.stream,
    f.operator,
    k.line,
    f.stack_id
FROM failed AS f
LEFT JOIN room AS r USING (session_id, attempt, rank, device, oom_seq)
LEFT JOIN device_info AS d USING (session_id, attempt, rank, device)
ASOF LEFT JOIN app_curve AS a
    ON f.session_id = a.session_id
    AND f.attempt = a.attempt
    AND f.rank = a.rank
    AND f.device = a.device
    AND f.oom_seq >= a.seq
LEFT JOIN host_info AS h ON f.host_uid = h.host_uid
LEFT JOIN stack AS k ON f.stack_id = k.stack_id;

COMMENT ON VIEW oom_overview IS 'An allocation that failed: what was asked for, what was free, in how large a piece, and who asked.';
