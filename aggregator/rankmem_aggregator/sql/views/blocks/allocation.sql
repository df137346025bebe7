-- Question: Which blocks lived, from when to when, how large, who made them, and what did they come to mean?
-- Columns:
--   session_id, attempt, rank, device: whose
--   allocation_id: seq of its alloc event; negative for blocks older than the recording. See allocation_record
--   address: on its device
--   size_bytes (bytes): requested size
--   requested_bytes (bytes): requested size where it differs (imported recordings)
--   stream, pool, component: where it was served from
--   category: what the bytes meant last; answers about an instant use what they meant then
--   operator, module, phase, step, annotation, call_id, stack_id: who made it
--   forward_call_id, forward_stack_id: for a block of backward, the forward call it belongs to
--   recomputed: true if made while a checkpoint computed forward again
--   attribution: by what operator, module, phase and stacks are known: observed, template, template_prefix, evidence,
--     none; NULL: as the source says. See allocation_record
--   like_id: for template and template_prefix the allocation_id of the block of an earlier step that it is like
--   allocated_ns (ns, common clock): when
--   free_requested_ns (ns, common clock): when its tensor was freed, where the allocator reports it
--   free_requested_seq: that event
--   freed_ns (ns, common clock): when the block was given back; NULL while it lives
--   freed_seq: that event
--   duration_ns (ns): from alloc to freed; NULL while it lives
--   preexisting: true for a block older than the recording
--   allocated_utc, freed_utc: the same instants as TIMESTAMP in UTC
-- Scatter: hosts
CREATE OR REPLACE VIEW allocation AS
WITH last_meaning AS (
    SELECT session_id, attempt, rank, device, allocation_id, arg_max(category, (seq, time_ns)) AS category
    FROM category_change
    GROUP BY ALL
)
SELECT
    a.* EXCLUDE (first_category),
    coalesce(c.category, a.first_category) AS category,
    utc_of(a.allocated_ns) AS allocated_utc,
    utc_of(a.freed_ns) AS freed_utc
FROM allocation_life AS a
LEFT JOIN last_meaning AS c USING (session_id, attempt, rank, device, allocation_id);

COMMENT ON VIEW allocation IS 'A block''s life, whole: its record, what became known of its end, and what it meant last.';
