-- Question: Which group does a block belong to, for a grouping that the caller names?
-- Parameters:
--   of_group: operator, module, line, category, phase, step, annotation, stream or component
--   operator, module, line, category, phase, step, annotation, stream, component: the block's own
--   preexisting: true for a block older than the recording; the default is false
-- Columns:
--   one value: the group as text; where the block has none NULL, or before the recording if it is older than that
CREATE OR REPLACE MACRO group_of(
    of_group, operator, module, line, category, phase, step, annotation, stream, component, preexisting := false
) AS coalesce(
    CASE of_group
        WHEN 'operator' THEN operator
        WHEN 'module' THEN module
        WHEN 'line' THEN line
        WHEN 'category' THEN CASE WHEN preexisting THEN meaning_of(category, true) ELSE category END
        WHEN 'phase' THEN phase
        WHEN 'step' THEN step::VARCHAR
        WHEN 'annotation' THEN annotation
        WHEN 'stream' THEN stream::VARCHAR
        WHEN 'component' THEN component
    END,
    CASE WHEN preexisting THEN 'before the recording' END
);

COMMENT ON MACRO group_of IS 'The group of a block, for a grouping named at run time.';
