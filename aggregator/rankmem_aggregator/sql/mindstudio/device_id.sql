-- Question: Which number does a device have, as MindStudio counts?
-- Parameters:
--   device (text): device type and index
-- Columns:
--   one value: its index; -1 for host memory
-- Scatter: none
CREATE OR REPLACE MACRO mindstudio.device_id(device)
AS coalesce(try_cast(split_part(device, ':', 2) AS INTEGER), -1);

COMMENT ON MACRO mindstudio.device_id IS 'The index of a device; -1 for host memory.';
