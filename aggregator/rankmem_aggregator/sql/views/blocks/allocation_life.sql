-- Question: Which blocks lived, from when to when, how large, and who made them?
-- Columns:
--   session_id, attempt, rank, device: whose
--   allocation_id: seq of its alloc event; negative for blocks older than the recording. See allocation_record
--   address: on its device
--   size_bytes (bytes): requested size
--   requested_bytes (bytes): requested size where it differs (imported recordings)
--   stream, pool, component: where it was served from
--   first_category: what the bytes meant when the record was sent; category_change has what it became
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
-- Scatter: hosts
CREATE OR REPLACE VIEW allocation_life AS
WITH ending AS (
    -- A free may come in two rows: requested in one batch, completed in a later one.
    SELECT
        session_id,
        attempt,
        rank,
        device,
        allocation_id,
        max(free_requested_ns) AS free_requested_ns,
        max(free_requested_seq) AS free_requested_seq,
        max(freed_ns) AS freed_ns,
        max(freed_seq) AS freed_seq
    FROM allocation_end
    GROUP BY ALL
)
SELECT
    r.session_id,
    r.attempt,
    r.rank,
    r.device,
    r.allocation_id,
    r.address,
    r.size_bytes,
    r.requested_bytes,
    r.stream,
    r.pool,
    r.component,
    coalesce(r.category, 'unknown') AS first_category,
    r.operator,
    r.module,
    r.phase,
    r.step,
    r.annotation,
    r.call_id,
    r.stack_id,
    r.forward_call_id,
    r.forward_stack_id,
    r.recomputed,
    r.attribution,
    r.like_id,
    r.allocated_ns + coalesce(s.offset_ns, 0) AS allocated_ns,
    coalesce(r.free_requested_ns, e.free_requested_ns) + coalesce(s.offset_ns, 0) AS free_requested_ns,
    coalesce(r.free_requested_seq, e.free_requested_seq) AS free_requested_seq,
    coalesce(r.freed_ns, e.freed_ns) + coalesce(s.offset_ns, 0) AS freed_ns,
    coalesce(r.freed_seq, e.freed_seq) AS freed_seq,
    coalesce(r.freed_ns, e.freed_ns) - r.allocated_ns AS duration_ns,
    r.preexisting
FROM allocation_record AS r
LEFT JOIN ending AS e USING (session_id, attempt, rank, device, allocation_id)
LEFT JOIN rank_span AS s USING (session_id, attempt, rank);

COMMENT ON VIEW allocation_life IS 'A block''s life as in allocation, without what it came to mean.';
