-- Question: What do the bytes of a block mean, for answers by category?
-- Parameters:
--   category: the block's own, NULL where it is not known
--   preexisting: true for a block older than the recording
-- Columns:
--   one value: the category; of a block older than the recording whose category is not known: before the recording
-- Scatter: none
CREATE OR REPLACE MACRO meaning_of(category, preexisting) AS
CASE
    WHEN preexisting AND coalesce(category, 'unknown') = 'unknown' THEN 'before the recording'
    ELSE coalesce(category, 'unknown')
END;

COMMENT ON MACRO meaning_of IS 'A category as a group: what is older than the recording and not known is a group of its own.';
