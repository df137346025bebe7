-- Question: Which component does an id of MEMORY_RECORD stand for?
-- Columns:
--   id: of MEMORY_RECORD.component
--   value: the component
-- Scatter: none
CREATE OR REPLACE VIEW mindstudio.text_of AS
SELECT mindstudio.id_of(value) AS id, value
FROM (VALUES ('PTA'), ('PTA+GE'), ('GE'), ('MindSpore'), ('MindSpore+GE'), ('WORKSPACE'), ('APP')) AS c (value);

COMMENT ON VIEW mindstudio.text_of IS 'The components of MEMORY_RECORD; STRING_IDS has them and all other texts.';
