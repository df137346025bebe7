-- Question: Which components of a rank reserved much, and when did each reserve the most?
-- Parameters:
--   of_session: session id
--   of_rank: global rank
--   threshold_bytes (bytes): lower peaks are left out; 104857600, the default, is MindStudio's
-- Columns:
--   Component: name of the component
--   Peak Memory Reserved(MB): the most it reserved, in MB of 1024 * 1024 bytes
--   Timestamp(ms): when, from the start of the session
-- Scatter: none
CREATE OR REPLACE MACRO mindstudio.component_peak(of_session, of_rank, threshold_bytes := 104857600) AS TABLE
SELECT *
FROM (
    SELECT
        m.name AS Component,
        max(n.totalReserved) / 1048576 AS "Peak Memory Reserved(MB)",
        (arg_max(n.timestampNs, (n.totalReserved, -n.timestampNs)) - any_value(s.started_ns)) / 1e6 AS "Timestamp(ms)"
    FROM mindstudio.NPU_MODULE_MEM AS n
    INNER JOIN mindstudio.ENUM_MODULE AS m ON m.id = n.moduleId
    INNER JOIN session_facts AS s ON s.session_id = n.sessionId
    WHERE n.sessionId = of_session AND n.rankId = of_rank AND n.totalReserved IS NOT NULL
    GROUP BY m.name
)
WHERE "Peak Memory Reserved(MB)" >= threshold_bytes / 1048576
ORDER BY "Peak Memory Reserved(MB)" DESC, Component;

COMMENT ON MACRO TABLE mindstudio.component_peak IS 'MindStudio''s component table: components whose peak reaches a threshold, 100 MB unless said.';
