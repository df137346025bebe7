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
WITH turn AS (
    -- Of orders that follow each other the first that changes something; a log begins with all that was switched on.
    SELECT session_id, attempt, rank, order_id, outcome, detail, step, seq, time_ns
    FROM control_change
    QUALIFY detail <> lag(detail, 1, 'full') OVER (PARTITION BY session_id, attempt, rank ORDER BY seq)
)
SELECT
    t.session_id,
    t.attempt,
    t.rank,
    t.step AS step_first,
    t.next_step - 1 AS step_last,
    t.seq AS seq_first,
    t.next_seq - 1 AS seq_last,
    t.time_ns + coalesce(s.offset_ns, 0) AS started_ns,
    t.next_ns + coalesce(s.offset_ns, 0) AS ended_ns,
    t.order_id,
    CASE WHEN t.outcome = 'auto' THEN 'auto' ELSE 'control' END AS asked_by
FROM (
    SELECT
        *,
        lead(step) OVER following AS next_step,
        lead(seq) OVER following AS next_seq,
        lead(time_ns) OVER following AS next_ns
    FROM turn
    WINDOW following AS (PARTITION BY session_id, attempt, rank ORDER BY seq)
) AS t
LEFT JOIN rank_span AS s ON t.session_id = s.session_id AND t.attempt = s.attempt AND t.rank = s.rank
WHERE t.detail = 'summary';

COMMENT ON VIEW detail_span IS 'Parts of ranks'' logs with events alone, by rankmem control or detail auto; bytes in them are exact.';
