-- Question: How much did each component of a rank reserve over time, as NPU_MODULE_MEM?
-- Parameters:
--   session (text), attempt, rank: the rank
--   from_ns, until_ns (ns, common clock): the range; NULL: no bound
-- Columns:
--   id, name: the component
--   time_ns (ns, common clock): when
--   reserved_bytes (bytes): at that time
--   device_id: index of the device; -1 for host memory
SELECT m.id, m.name, n.timestampNs AS time_ns, n.totalReserved AS reserved_bytes, n.deviceId AS device_id
FROM mindstudio.NPU_MODULE_MEM AS n
INNER JOIN mindstudio.ENUM_MODULE AS m ON m.id = n.moduleId
WHERE n.sessionId = $session
    AND n.attempt = $attempt
    AND n.rankId = $rank
    AND ($from_ns::BIGINT IS NULL OR n.timestampNs >= $from_ns)
    AND ($until_ns::BIGINT IS NULL OR n.timestampNs <= $until_ns)
ORDER BY n.moduleId, n.timestampNs;
