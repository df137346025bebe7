-- Question: What did each rank's whole process hold on a device, and how much of it lies beyond the allocators we see?
-- Columns:
--   session_id, attempt, rank, device: whose
--   seq: position in the rank's log
--   time_ns (ns, common clock): when it was sampled
--   app_reserved_bytes (bytes): held by the whole process: the driver's figure, or RSS on cpu
--   known_bytes (bytes): what the allocator held then: reserved, on cpu requested
--   app_bytes (bytes): what lies beyond: the component app; never below 0
--   device_used_bytes, device_free_bytes, device_total_bytes (bytes): of the device, all processes together
CREATE OR REPLACE VIEW app_curve AS
SELECT
    p.session_id,
    p.attempt,
    p.rank,
    p.device,
    p.seq,
    p.time_ns + coalesce(s.offset_ns, 0) AS time_ns,
    p.app_reserved_bytes,
    coalesce(b.reserved_last_bytes, b.requested_last_bytes, 0) AS known_bytes,
    greatest(p.app_reserved_bytes - known_bytes, 0) AS app_bytes,
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
LEFT JOIN rank_span AS s ON p.session_id = s.session_id AND p.attempt = s.attempt AND p.rank = s.rank;

COMMENT ON VIEW app_curve IS 'What the whole process holds on a device, and what of it lies beyond the allocators.';
