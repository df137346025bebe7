-- Question: when did the driver's calls begin and end?
-- Columns: earliest start and latest end.
SELECT min(start), max(end) FROM CUPTI_ACTIVITY_KIND_DRIVER
