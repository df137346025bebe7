-- Question: Which group does a block belong to, for a grouping that the caller names?
-- Parameters:
--   of_group: operator, module, line, category, phase, step, annotation, stream or component
--   block: a row or struct that has these as columns, and preexisting: true for a block older than the recording
-- Columns:
--   one value: the group as text; where the block has none NULL, or before the recording if it is older than that
-- Scatter: none
CREATE OR REPLACE MACRO group_of_block(of_group, block) AS coalesce(
    CASE of_group
        WHEN 'operator' THEN block.operator
        WHEN 'module' THEN block.module
        WHEN 'line' THEN block.line
        WHEN 'category' THEN CASE WHEN block.preexisting THEN meaning_of(block.category, true) ELSE block.category END
        WHEN 'phase' THEN block.phase
        WHEN 'step' THEN block.step::VARCHAR
        WHEN 'annotation' THEN block.annotation
        WHEN 'stream' THEN block.stream::VARCHAR
        WHEN 'component' THEN block.component
    END,
    CASE WHEN block.preexisting THEN 'before the recording' END
);

COMMENT ON MACRO group_of_block IS 'The group of a block, given as a row, for a grouping named at run time.';
