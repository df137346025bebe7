-- Question: Which device did each rank use?
SELECT DISTINCT rankId, deviceId FROM RANK_DEVICE_MAP WHERE rankId IS NOT NULL ORDER BY rankId, deviceId
