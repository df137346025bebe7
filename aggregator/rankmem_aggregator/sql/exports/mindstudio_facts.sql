-- Question: Which host, devices and steps do MindStudio's tables name for a rank?
-- Parameters:
--   session (text), attempt, rank: the rank
-- Columns:
--   host_uid, host_name: its host
--   devices: names by device, as a list
--   steps: id, startNs and endNs of each step, as a list
SELECT
    r.host_uid,
    coalesce(h.host_name, r.host_uid) AS host_name,
    (
        SELECT list({device: device, name: name} ORDER BY device)
        FROM device_info
        WHERE session_id = $session AND attempt = $attempt AND rank = $rank
    ) AS devices,
    (
        SELECT list({id: id, started_ns: startNs, ended_ns: endNs} ORDER BY endNs, id)
        FROM mindstudio.STEP_TIME
        WHERE sessionId = $session AND attempt = $attempt AND rankId = $rank
    ) AS steps
FROM rank_info AS r
LEFT JOIN host_info AS h USING (host_uid)
WHERE r.session_id = $session AND r.attempt = $attempt AND r.rank = $rank
ORDER BY r.rank;
