-- Question: which threads have ranges?
-- Columns: thread as process (4 bytes) and thread (8 bytes).
SELECT DISTINCT objectId FROM CUPTI_ACTIVITY_KIND_MARKER WHERE flags = 2 ORDER BY objectId
