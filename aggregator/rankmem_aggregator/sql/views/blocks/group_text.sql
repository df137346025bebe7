-- Question: What is a block's group called where one without a group needs a name, too?
-- Parameters:
--   value: its operator, step, ...; NULL where it has none
--   preexisting: true for a block older than the recording
-- Columns:
--   one value: the group as text; where the block has none before the recording if it is older than that, else empty
-- Scatter: none
CREATE OR REPLACE MACRO group_text(value, preexisting) AS
coalesce(value::VARCHAR, CASE WHEN preexisting THEN 'before the recording' ELSE '' END);

COMMENT ON MACRO group_text IS 'A group of blocks as a text that is never NULL.';
