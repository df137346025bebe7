-- Question: What did the process (app) and the whole device hold, sample by sample?
-- A word where a number should be comes as it is, to be refused: added to 0 it would be 0.
SELECT
    timestampNs,
    CASE type WHEN 'app' THEN held END,
    CASE type WHEN 'device' THEN held END,
    deviceId
FROM (
    SELECT
        n.rowid AS place,
        n.timestampNs,
        coalesce(s.value, n.type) AS type,
        CASE
            WHEN typeof(n.hbm) IN ('text', 'blob') THEN n.hbm
            WHEN typeof(n.ddr) IN ('text', 'blob') THEN n.ddr
            WHEN n.hbm IS NULL AND n.ddr IS NULL THEN NULL
            ELSE coalesce(n.hbm, 0) + coalesce(n.ddr, 0)
        END AS held,
        n.deviceId
    FROM NPU_MEM AS n
    LEFT JOIN STRING_IDS AS s ON s.id = n.type
)
ORDER BY place
