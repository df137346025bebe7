-- Question: In which parts of a rank's log were events recorded without operators, stacks and modules (rankmem control, detail auto)?
-- Columns:
--   session_id, attempt, rank: who
--   step_first: the first step recorded so
--   step_last: the last one; NULL: up to the log's end so far
--   seq_first: position in the rank's log from which on
--   seq_last: position up to which; NULL: up to the end
--   started_ns (ns, common clock): from when on
--   ended_ns (ns, common clock): until when; NULL: until the end
--   order_id: the order that began it, see control; 0: none, detail was auto from the start
--   asked_by: auto: the rank itself chose (detail auto); control: the order said so
-- Scatter: hosts
CREATE OR REPLACE VIEW detail_span AS
SELECT
    t.session_id,
    t.attempt,
    t.rank,
    t.step_first,
    t.step_last,
    t.seq_first,
    t.seq_last,
    t.first_ns + coalesce(s.offset_ns, 0) AS started_ns,
    t.next_ns + coalesce(s.offset_ns, 0) AS ended_ns,
    t.order_id,
    t.asked_by
FROM detail_turn AS t
LEFT JOIN rank_span AS s USING (session_id, attempt, rank);

COMMENT ON VIEW detail_span IS 'Parts of ranks'' logs with events alone, by rankmem control or detail auto; bytes in them are exact.';
