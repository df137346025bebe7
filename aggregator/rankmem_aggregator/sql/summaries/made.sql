-- Question: Which blocks were made in the range of this pass?
-- Columns:
--   number: of the rank in summary_due
--   device, allocation_id, size_bytes: the block
--   stream, component, phase, category: its groups; the category is the one its record has
--   allocated_ns: when; NULL for blocks older than the recording
--   preexisting: true for those
--   freed_seq, freed_ns: its end, where its record has it
-- In the order of the table: the reader sorts by number anyway.
SELECT
    d.number,
    r.device,
    r.allocation_id,
    r.size_bytes,
    coalesce(r.stream::VARCHAR, CASE WHEN r.preexisting THEN 'before the recording' END) AS stream,
    r.component,
    coalesce(r.phase, CASE WHEN r.preexisting THEN 'before the recording' END) AS phase,
    meaning_of(r.category, r.preexisting) AS category,
    r.allocated_ns,
    r.preexisting,
    r.freed_seq,
    r.freed_ns
FROM allocation_record AS r
INNER JOIN summary_due AS d USING (session_id, attempt, rank)
WHERE r.allocation_id > d.seq_from
    AND r.allocation_id <= d.seq_upto
    -- Again for all ranks together, on the table's own column: most of the file is passed over.
    AND r.allocation_id > (SELECT min(seq_from) FROM summary_due)
    AND r.allocation_id <= (SELECT max(seq_upto) FROM summary_due);
