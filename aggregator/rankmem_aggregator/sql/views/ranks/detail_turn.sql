-- Question: In which parts of a rank's log were events recorded without operators, stacks and modules, by the rank's own clock?
-- Columns:
--   session_id, attempt, rank: who
--   step_first, step_last, seq_first, seq_last, order_id, asked_by: as in detail_span
--   first_ns (ns, the host's clock): from when on
--   next_ns (ns, the host's clock): until when; NULL: until the end
-- Scatter: hosts
CREATE OR REPLACE VIEW detail_turn AS
SELECT
    session_id,
    attempt,
    rank,
    step AS step_first,
    next_step - 1 AS step_last,
    seq AS seq_first,
    next_seq - 1 AS seq_last,
    time_ns AS first_ns,
    next_ns,
    order_id,
    CASE WHEN outcome = 'auto' THEN 'auto' ELSE 'control' END AS asked_by
FROM (
    SELECT
        *,
        lead(step) OVER following AS next_step,
        lead(seq) OVER following AS next_seq,
        lead(time_ns) OVER following AS next_ns
    FROM (
        -- Of orders that follow each other the first that changes something; a log begins with all that was switched on.
        SELECT session_id, attempt, rank, order_id, outcome, detail, step, seq, time_ns
        FROM control_change
        QUALIFY detail <> lag(detail, 1, 'full') OVER (PARTITION BY session_id, attempt, rank ORDER BY seq)
    )
    WINDOW following AS (PARTITION BY session_id, attempt, rank ORDER BY seq)
)
WHERE detail = 'summary';

COMMENT ON VIEW detail_turn IS 'The rows of detail_span by the hosts'' own clocks.';
