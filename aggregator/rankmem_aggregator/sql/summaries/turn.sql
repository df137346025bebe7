-- Question: What did blocks come to mean in the range of this pass?
-- Columns:
--   number: of the rank in summary_due
--   allocation_id: the block
--   seq, time_ns: from when
--   category: what it meant from then on
SELECT
    d.number,
    c.allocation_id,
    c.seq,
    c.time_ns,
    -- Ids below 0 are of blocks older than the recording.
    meaning_of(c.category, c.allocation_id < 0) AS category
FROM category_change AS c
INNER JOIN summary_due AS d USING (session_id, attempt, rank)
WHERE c.seq > d.seq_from
    AND c.seq <= d.seq_upto
    AND c.seq > (SELECT min(seq_from) FROM summary_due)
    AND c.seq <= (SELECT max(seq_upto) FROM summary_due)
ORDER BY d.number, c.allocation_id, c.seq, c.time_ns;
