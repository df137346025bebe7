-- Question: Which allocations failed, how much was asked for, what was free, and in how large a piece?
-- Columns:
--   session_id, attempt, rank, device: whose
--   host_name: its host
--   seq: the event; live_at_seq tells what was alive
--   time_ns (ns, common clock): when
--   time_utc: the same, readable
--   size_bytes (bytes): what was asked for; rounded up by the allocator on CUDA
--   device_free_bytes (bytes): free on the device then, where known
--   requested_bytes (bytes): requested bytes alive then
--   reserved_bytes (bytes): what the allocator held then; on cpu NULL
--   unused_bytes (bytes): reserved and in no block, by the blocks and segments we know; NULL where segments are not told
--   largest_free_bytes (bytes): the largest piece of it in a row
--   fragmentation: the part of unused_bytes outside of that piece, 0 to 1
--   stream: of the request
--   operator, line, stack_id: who asked
CREATE OR REPLACE VIEW oom_overview AS
WITH failed AS (
    SELECT o.*, coalesce(s.offset_ns, 0) AS offset_ns, s.host_uid
    FROM oom AS o
    LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
),
-- Segments grow by map and shrink by unmap: each of these actions counts as a segment of its own.
segment AS (
    SELECT
        f.session_id,
        f.attempt,
        f.rank,
        f.device,
        f.seq AS oom_seq,
        e.address,
        arg_max(e.size_bytes, e.seq) AS size_bytes
    FROM failed AS f
    INNER JOIN memory_event AS e USING (session_id, attempt, rank, device)
    WHERE e.seq < f.seq AND e.action IN ('segment_alloc', 'segment_free', 'segment_map', 'segment_unmap')
    GROUP BY f.session_id, f.attempt, f.rank, f.device, f.seq, e.address
    HAVING arg_max(e.action, e.seq) IN ('segment_alloc', 'segment_map')
),
block AS (
    SELECT
        f.session_id,
        f.attempt,
        f.rank,
        f.device,
        f.seq AS oom_seq,
        a.address,
        -- The allocator cuts blocks in steps of 512 bytes.
        a.address + (a.size_bytes + 511) // 512 * 512 AS end_address
    FROM failed AS f
    INNER JOIN allocation_life AS a USING (session_id, attempt, rank, device)
    WHERE a.allocation_id < f.seq AND (a.freed_seq IS NULL OR a.freed_seq > f.seq) AND a.address IS NOT NULL
),
-- What is free lies after a segment's start or a block's end, up to the next block or the segment's end.
hole AS (
    SELECT
        session_id,
        attempt,
        rank,
        device,
        oom_seq,
        greatest(
            least(lead(address, 1, end_address) OVER (
                PARTITION BY session_id, attempt, rank, device, oom_seq, segment_address ORDER BY address, from_address
            ), end_address) - from_address, 0
        ) AS bytes
    FROM (
        SELECT
            session_id,
            attempt,
            rank,
            device,
            oom_seq,
            address AS segment_address,
            address,
            address AS from_address,
            address + size_bytes AS end_address
        FROM segment
        UNION ALL
        SELECT
            g.session_id,
            g.attempt,
            g.rank,
            g.device,
            g.oom_seq,
            g.address,
            b.address,
            b.end_address,
            g.address + g.size_bytes
        FROM block AS b
        INNER JOIN segment AS g
            ON g.session_id = b.session_id
            AND g.attempt = b.attempt
            AND g.rank = b.rank
            AND g.device = b.device
            AND g.oom_seq = b.oom_seq
            AND b.address >= g.address
            AND b.address < g.address + g.size_bytes
    )
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
    GROUP BY session_id, attempt, rank, device, oom_seq
)
SELECT
    f.session_id,
    f.attempt,
    f.rank,
    f.device,
    h.host_name,
    f.seq,
    f.time_ns + f.offset_ns AS time_ns,
    utc_of(f.time_ns + f.offset_ns) AS time_utc,
    f.size_bytes,
    f.device_free_bytes,
    f.requested_bytes,
    f.reserved_bytes,
    r.unused_bytes,
    r.largest_free_bytes,
    CASE WHEN r.unused_bytes > 0 THEN 1 - r.largest_free_bytes / r.unused_bytes END AS fragmentation,
    f.stream,
    f.operator,
    k.line,
    f.stack_id
FROM failed AS f
LEFT JOIN room AS r
    ON r.session_id = f.session_id
    AND r.attempt = f.attempt
    AND r.rank = f.rank
    AND r.device = f.device
    AND r.oom_seq = f.seq
LEFT JOIN host_info AS h ON f.host_uid = h.host_uid
LEFT JOIN stack AS k ON f.stack_id = k.stack_id;

COMMENT ON VIEW oom_overview IS 'An allocation that failed: what was asked for, what was free, in how large a piece, and who asked.';
