-- Question: What did the process (app) and the whole device hold, sample by sample?
SELECT
    n.timestampNs,
    CASE coalesce(s.value, n.type) WHEN 'app' THEN coalesce(n.hbm, 0) + coalesce(n.ddr, 0) END,
    CASE coalesce(s.value, n.type) WHEN 'device' THEN coalesce(n.hbm, 0) + coalesce(n.ddr, 0) END,
    n.deviceId
FROM NPU_MEM AS n
LEFT JOIN STRING_IDS AS s ON s.id = n.type
ORDER BY n.rowid
