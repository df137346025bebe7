-- Question: Which group does a block belong to, for a grouping that the caller names?
-- Parameters:
--   of_group: operator, module, line, category, phase, step, annotation, stream or component
--   operator, module, line, category, phase, step, annotation, stream, component: the block's own
-- Columns:
--   one value: the group as text; NULL where the block has none
CREATE OR REPLACE MACRO group_of(
    of_group, operator, module, line, category, phase, step, annotation, stream, component
) AS CASE of_group
    WHEN 'operator' THEN operator
    WHEN 'module' THEN module
    WHEN 'line' THEN line
    WHEN 'category' THEN category
    WHEN 'phase' THEN phase
    WHEN 'step' THEN step::VARCHAR
    WHEN 'annotation' THEN annotation
    WHEN 'stream' THEN stream::VARCHAR
    WHEN 'component' THEN component
END;

COMMENT ON MACRO group_of IS 'The group of a block, for a grouping named at run time.';
