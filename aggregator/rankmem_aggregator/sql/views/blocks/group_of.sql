-- Question: Which group does a block belong to, given its columns one by one (group_of_block takes a row)?
-- Parameters:
--   of_group: operator, module, line, category, phase, step, annotation, stream or component
--   operator, module, line, category, phase, step, annotation, stream, component: the block's own
--   preexisting: true for a block older than the recording; the default is false
-- Columns:
--   one value: as group_of_block
-- Scatter: none
CREATE OR REPLACE MACRO group_of(
    of_group, operator, module, line, category, phase, step, annotation, stream, component, preexisting := false
) AS group_of_block(
    of_group,
    {
        operator: operator, module: module, line: line, category: category, phase: phase, step: step,
        annotation: annotation, stream: stream, component: component, preexisting: preexisting
    }
);

COMMENT ON MACRO group_of IS 'The group of a block, for a grouping named at run time.';
