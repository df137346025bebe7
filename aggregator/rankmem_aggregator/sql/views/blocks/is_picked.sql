-- Question: Does a block belong to the groups that are picked?
-- Parameters:
--   of_pick: JSON text, an object of lists of texts: for each kind the groups picked; a block must fit every kind
--     given, by one of its texts. Kinds: category, operator, module, phase, stream, component, step, annotation
--     (groups as in group_text); within (one module, with all below it); origin (numbers of stacks, of a block of backward
--     that of its forward call, or the group of a block without); stack and block (their numbers). NULL picks every block
--   block: a row or struct that has the columns of the view allocation
-- Columns:
--   one value: true if it does
-- Scatter: none
CREATE OR REPLACE MACRO is_picked(of_pick, block) AS
of_pick IS NULL
OR (
    is_among(of_pick, '$.category[*]', meaning_of(block.category, block.preexisting))
    AND is_among(of_pick, '$.operator[*]', group_text(block.operator, block.preexisting))
    AND is_among(of_pick, '$.module[*]', group_text(block.module, block.preexisting))
    AND is_among(of_pick, '$.phase[*]', group_text(block.phase, block.preexisting))
    AND is_among(of_pick, '$.stream[*]', group_text(block.stream, block.preexisting))
    AND is_among(of_pick, '$.component[*]', group_text(block.component, block.preexisting))
    AND is_among(of_pick, '$.step[*]', group_text(block.step, block.preexisting))
    AND is_among(of_pick, '$.annotation[*]', group_text(block.annotation, block.preexisting))
    AND is_among(of_pick, '$.block[*]', block.allocation_id::VARCHAR)
    AND (
        is_among(of_pick, '$.stack[*]', block.stack_id::VARCHAR)
        OR is_among(of_pick, '$.stack[*]', block.forward_stack_id::VARCHAR)
    )
    -- One alone: a list that is gone through for each block takes four times as long as all else here.
    AND (
        json_extract_string(of_pick::VARCHAR, '$.within[0]') IS NULL
        OR coalesce(starts_with(block.module || '.', json_extract_string(of_pick::VARCHAR, '$.within[0]') || '.'), false)
    )
    AND (
        json_extract_string(of_pick::VARCHAR, '$.origin[*]')::VARCHAR[] = []
        OR coalesce(coalesce(block.forward_stack_id, block.stack_id)::VARCHAR, group_text(NULL, block.preexisting)) IN (
            SELECT unnest(json_extract_string(of_pick::VARCHAR, '$.origin[*]')::VARCHAR[])
        )
    )
);

COMMENT ON MACRO is_picked IS 'Whether a block belongs to picked groups, given as JSON text.';
