-- Question: What did each rank's whole process hold on a device, and how much of it lies beyond the allocators we see?
-- Columns:
--   session_id, attempt, rank, device: whose
--   seq: position in the rank's log
--   time_ns (ns, common clock): when it was sampled
--   app_reserved_bytes (bytes): held by the whole process: the driver's figure, or RSS on cpu; NULL where it is
--     not known, as when the driver does not list the process
--   known_bytes (bytes): what the allocator held then: reserved, on cpu requested. NULL where that is not known: in
--     a recording before the first record of each of its components, or where it has no reserved bytes
--   app_bytes (bytes): what lies beyond: the component app; NULL where one of the two is not known, never below 0
--   device_used_bytes, device_free_bytes, device_total_bytes (bytes): of the device, all processes together
-- Scatter: hosts
CREATE OR REPLACE VIEW app_curve AS
-- Components of a recording that held something before their first record: until that, the totals lack it.
WITH whole AS (
    SELECT r.session_id, r.attempt, r.rank, r.device, max(r.allocation_id) AS seq_before
    FROM allocation_record AS r
    INNER JOIN device_info AS d USING (session_id, attempt, rank, device)
    WHERE d.source = 'mindstudio' AND r.preexisting AND r.allocation_id >= 0
    GROUP BY r.session_id, r.attempt, r.rank, r.device
)
SELECT
    p.session_id,
    p.attempt,
    p.rank,
    p.device,
    p.seq,
    p.time_ns + coalesce(s.offset_ns, 0) AS time_ns,
    p.app_reserved_bytes,
    CASE
        WHEN p.seq < w.seq_before THEN NULL
        -- Our own log begins with what was there; for any other it is not known what came before its first record.
        WHEN b.seq_first IS NULL THEN CASE WHEN coalesce(d.source, 'tap') = 'tap' THEN 0 END
        WHEN p.device = 'cpu' THEN coalesce(b.reserved_last_bytes, b.requested_last_bytes)
        ELSE b.reserved_last_bytes
    END AS known_bytes,
    -- greatest() of NULL and 0 would be 0.
    CASE
        WHEN p.app_reserved_bytes IS NOT NULL AND known_bytes IS NOT NULL
            THEN greatest(p.app_reserved_bytes - known_bytes, 0)
    END AS app_bytes,
    p.device_used_bytes,
    p.device_free_bytes,
    p.device_total_bytes
FROM process_sample AS p
-- The last bucket begun before it: what changed within its 64 records is within the sample's own coarseness.
ASOF LEFT JOIN memory_bucket AS b
    ON p.session_id = b.session_id
    AND p.attempt = b.attempt
    AND p.rank = b.rank
    AND p.device = b.device
    AND p.seq >= b.seq_first
LEFT JOIN device_info AS d
    ON p.session_id = d.session_id
    AND p.attempt = d.attempt
    AND p.rank = d.rank
    AND p.device = d.device
LEFT JOIN whole AS w
    ON p.session_id = w.session_id
    AND p.attempt = w.attempt
    AND p.rank = w.rank
    AND p.device = w.device
LEFT JOIN rank_span AS s ON p.session_id = s.session_id AND p.attempt = s.attempt AND p.rank = s.rank;

COMMENT ON VIEW app_curve IS 'What the whole process holds on a device, and what of it lies beyond the allocators.';
