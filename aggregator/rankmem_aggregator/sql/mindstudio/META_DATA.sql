-- Question: Which version of MindStudios tables are these?
-- Columns:
--   name, value: SCHEMA_VERSION
-- Scatter: none
CREATE OR REPLACE VIEW mindstudio.META_DATA AS
SELECT 'SCHEMA_VERSION' AS name, '1.0.2' AS value;

COMMENT ON VIEW mindstudio.META_DATA IS 'META_DATA.';
