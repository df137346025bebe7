-- Question: Which hosts have no rank any more?
-- Columns:
--   none: their rows of host_info are deleted
DELETE FROM host_info WHERE host_uid NOT IN (SELECT host_uid FROM rank_info);
