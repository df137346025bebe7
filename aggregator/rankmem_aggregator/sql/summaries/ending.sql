-- Question: Which blocks ended in the range of this pass, of those whose record does not have it?
-- Columns:
--   number: of the rank in summary_due
--   allocation_id: the block
--   freed_seq, freed_ns: its end
SELECT d.number, e.allocation_id, e.freed_seq, e.freed_ns
FROM allocation_end AS e
INNER JOIN summary_due AS d USING (session_id, attempt, rank)
WHERE e.freed_seq > d.seq_from
    AND e.freed_seq <= d.seq_upto
    AND e.freed_seq > (SELECT min(seq_from) FROM summary_due)
    AND e.freed_seq <= (SELECT max(seq_upto) FROM summary_due)
ORDER BY d.number, e.allocation_id;
