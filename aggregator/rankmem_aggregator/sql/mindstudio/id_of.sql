-- Question: Which id stands for a text in the views of the schema mindstudio?
-- Parameters:
--   value (text): the text
-- Columns:
--   one value: a positive 62-bit hash, the same in all views
-- Scatter: none
CREATE OR REPLACE MACRO mindstudio.id_of(value) AS (hash(value) >> 2)::BIGINT;

COMMENT ON MACRO mindstudio.id_of IS 'The id of a text in STRING_IDS.';
