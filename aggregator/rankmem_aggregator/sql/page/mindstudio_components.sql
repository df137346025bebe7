-- Question: Which components of a rank reserved 100 MB or more, and when the most, as in MindStudio's table?
-- Parameters:
--   session (text): session id
--   rank (count): global rank
--   started_ns (ns, common clock): the session's start, from which times count; NULL: it is not known, and nor are they
-- Columns:
--   Component, Peak Memory Reserved(MB), Timestamp(ms): as in mindstudio.component_peak, which finds the start besides
SELECT
    m.name AS Component,
    max(n.totalReserved) / 1048576 AS "Peak Memory Reserved(MB)",
    (arg_max(n.timestampNs, (n.totalReserved, -n.timestampNs)) - $started_ns::BIGINT) / 1e6 AS "Timestamp(ms)"
FROM mindstudio.NPU_MODULE_MEM AS n
INNER JOIN mindstudio.ENUM_MODULE AS m ON m.id = n.moduleId
WHERE n.sessionId = $session AND n.rankId = $rank AND n.totalReserved IS NOT NULL
GROUP BY m.name
HAVING max(n.totalReserved) >= 104857600
ORDER BY "Peak Memory Reserved(MB)" DESC, Component;
