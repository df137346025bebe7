-- Question: What did a rank's process hold on a device beyond its allocator, and what of it is known by name?
-- Parameters:
--   session (text): session id
--   attempt, rank, device: which device
-- Columns:
--   time_ns (ns, common clock): of the sample
--   name: allocator (what it held then), app (the process beyond it), process (all of it), device used, device total; or a
--     sampled component
--   bytes (bytes): how much; NULL where it was not known then
--   is_part: true for allocator and app, which add up to the process
WITH sample AS (
    SELECT time_ns, unnest([
        {name: 'allocator', bytes: known_bytes, is_part: true},
        {name: 'app', bytes: app_bytes, is_part: true},
        {name: 'process', bytes: app_reserved_bytes, is_part: false},
        {name: 'device used', bytes: device_used_bytes, is_part: false},
        {name: 'device total', bytes: device_total_bytes, is_part: false}
    ], recursive := true)
    FROM app_curve
    WHERE session_id = $session AND attempt = $attempt AND rank = $rank AND device = $device
)
SELECT time_ns, name, bytes, is_part FROM sample
UNION ALL
SELECT c.time_ns + coalesce(s.offset_ns, 0), c.component, c.reserved_bytes, false
FROM component_sample AS c
LEFT JOIN rank_span AS s USING (session_id, attempt, rank)
WHERE c.session_id = $session AND c.attempt = $attempt AND c.rank = $rank AND c.device = $device
ORDER BY name, time_ns;
