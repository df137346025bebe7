-- Question: From when to when did each step run?
SELECT id, startNs, endNs FROM STEP_TIME WHERE startNs IS NOT NULL AND endNs IS NOT NULL ORDER BY endNs, id
