-- Question: Is a text one of those that a JSON object has in a list, or is there no such list?
-- Parameters:
--   of_pick: JSON text, an object of lists of texts
--   path: the list, such as $.category[*]
--   value: the text
-- Columns:
--   one value: true if it is, or if there is no such list
-- Scatter: none
CREATE OR REPLACE MACRO is_among(of_pick, path, value) AS
json_extract_string(of_pick::VARCHAR, path)::VARCHAR[] = [] OR coalesce(list_contains(json_extract_string(of_pick::VARCHAR, path)::VARCHAR[], value), false);

COMMENT ON MACRO is_among IS 'Whether a text is in a list of a JSON object, if that has one.';
