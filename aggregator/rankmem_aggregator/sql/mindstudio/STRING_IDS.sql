-- Question: Which text does an id of these views stand for?
-- Columns:
--   id: of component, name, type and operatorName
--   value: the text
-- Scatter: none
CREATE OR REPLACE VIEW mindstudio.STRING_IDS AS
SELECT mindstudio.id_of(value) AS id, value
FROM (
    SELECT unnest(['app', 'device', 'unknown', 'alloc', 'release']) AS value
    UNION
    SELECT value FROM mindstudio.text_of
    UNION
    SELECT operator FROM allocation_record WHERE operator IS NOT NULL
);

COMMENT ON VIEW mindstudio.STRING_IDS IS 'STRING_IDS: the texts behind the ids; ids are hashes, not counted from 2<<28.';
